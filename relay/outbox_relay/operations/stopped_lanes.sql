-- Lanes, as operators see them, and how they ask for a retry.

-- name: all
-- Every lane: its owner while the lease lasts, and where it is stopped, with the message's id, topic and state. A message
-- id that the outbox made carries the row's id; others have an index of their own.
SELECT l.lane, e.owner, l.stopped_error AS error, l.stopped_message AS message_id, l.stopped_at, l.retrying_at,
       l.retry_requested_at, m.id, m.topic, m.state, l.stopped_in_doubt AS in_doubt
FROM outbox.lane l
LEFT JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner AND e.leased_until > clock_timestamp()
LEFT JOIN LATERAL (
    SELECT o.id, o.topic, o.state FROM outbox.message o
    WHERE o.id = outbox.id_of(l.stopped_message) AND o.message_id = l.stopped_message
    UNION ALL
    SELECT f.id, f.topic, f.state FROM outbox.message f
    WHERE f.message_id = l.stopped_message AND get_byte(uuid_send(f.message_id), 6) >> 4 <> 8 AND f.lane = l.lane
    LIMIT 1
) m ON l.stopped_error IS NOT NULL
ORDER BY l.lane

-- name: request
-- Ask the relay to try a stopped lane again. It looks once a second while lanes are stopped.
UPDATE outbox.lane SET retry_requested_at = clock_timestamp()
WHERE lane = %(lane)s AND stopped_error IS NOT NULL RETURNING lane
