-- The relays of the database, as operators see them, and how they ask one to drain. outbox.lease has a row for each.

-- name: all
-- Every relay with a lease, the oldest first: its lanes, whether no broker replies to it, the seconds that its lease
-- lasts, and whether its database session is there.
SELECT e.owner, e.epoch,
       ARRAY(SELECT l.lane FROM outbox.lane l WHERE l.epoch = e.epoch AND l.owner = e.owner ORDER BY l.lane)::integer[]
           AS lanes,
       e.version, e.shard, e.is_draining, e.lacks_kafka, e.joined_at,
       extract(epoch FROM e.leased_until - clock_timestamp())::float8 AS lease_seconds,
       e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a) AS has_session
FROM outbox.lease e ORDER BY e.epoch

-- name: ask
-- Ask these sessions of relays to drain, or no longer; each reads it within a quarter of a second.
UPDATE outbox.lease SET is_draining = %(is_draining)s
WHERE epoch = ANY (%(epochs)s) AND is_draining <> %(is_draining)s
