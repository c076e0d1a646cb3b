-- How commands that change topics follow the relays.

-- name: generation
-- How often topics were changed by now.
SELECT generation FROM outbox.topic_generation

-- name: relays
-- The relays that may publish a topic by an older change of it, or did so with messages that are not acknowledged: those that
-- did not state a newer one, whose session is there and whose process has not joined again. One whose lease has ended
-- counts while lanes are its own: paused, it would go on with them.
SELECT e.owner, e.epoch,
       ARRAY(SELECT l.lane FROM outbox.lane l WHERE l.epoch = e.epoch AND l.owner = e.owner ORDER BY l.lane)::integer[]
           AS lanes,
       extract(epoch FROM e.leased_until - clock_timestamp())::float8 AS lease_seconds,
       e.topics_seen >= %(generation)s AND %(topic)s <> ALL (e.topics_behind) AS has_applied
FROM outbox.lease e
WHERE e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a)
    AND NOT EXISTS (SELECT FROM outbox.lease n WHERE n.owner = e.owner AND n.epoch > e.epoch)
    AND (e.leased_until > clock_timestamp()
         OR EXISTS (SELECT FROM outbox.lane l WHERE l.epoch = e.epoch AND l.owner = e.owner))
ORDER BY e.epoch
