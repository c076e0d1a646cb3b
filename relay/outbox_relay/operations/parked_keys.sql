-- Parked keys, as operators see them.

-- name: columns
-- A key with the message that fails and the number of those held behind it; or a topic, of which all of them wait alike.
SELECT k.lane, k.topic, k.queue, k.order_key, k.head AS id, h.message_id, k.error, k.since, k.tries, k.requested_at,
       k.is_topic, k.draining_at IS NOT NULL AS is_draining, coalesce(h.in_doubt, false) AS in_doubt,
       (SELECT count(*) FROM outbox.waiting w WHERE w.parked = k.number AND (k.is_topic OR w.id <> k.head)) AS held,
       EXISTS (SELECT FROM outbox.lane l JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner
               WHERE l.lane = k.lane AND e.leased_until > clock_timestamp()) AS has_relay
FROM outbox.parked_key k LEFT JOIN outbox.waiting h ON h.id = k.head

-- name: all
-- The parked keys, oldest first.
{columns} ORDER BY k.since, k.number LIMIT %(most)s

-- name: of_message
-- The parked key of one message.
{columns} WHERE k.number = (SELECT w.parked FROM outbox.waiting w WHERE w.id = %(id)s)

-- name: request
-- Asks the owners of a topic's parked keys to publish their messages again, in order. Keys that somebody holds (a message
-- is being given up), or that are being drained, are left as they are.
UPDATE outbox.parked_key k SET requested_at = clock_timestamp(), requested_by = outbox.actor()
WHERE k.number IN (SELECT o.number FROM outbox.parked_key o WHERE o.topic = %(topic)s AND o.draining_at IS NULL
                   FOR NO KEY UPDATE SKIP LOCKED)
