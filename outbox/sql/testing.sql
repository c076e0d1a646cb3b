-- What tests of applications ask; see outbox/testing.

-- name: newest
-- The newest message that is visible here, so that a test sees only what is sent after it.
SELECT coalesce(max(id), 0) FROM outbox.message;

-- name: sent
-- Messages with ids above $1, those of the open transaction included, in the order in which they were sent.
SELECT m.id, m.message_id, m.topic, m.key, m.body, m.headers, m.tags, m.index_keys, m.order_key, m.state,
    m.producer_group, m.deliver_at, m.deliver_before
FROM outbox.message m
WHERE m.id > $1::bigint
ORDER BY m.id;
