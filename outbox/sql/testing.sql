-- What tests of applications ask; see outbox/testing.

-- name: newest
-- The newest message that is visible here, so that a test sees only what is sent after it.
SELECT coalesce(pg_catalog.max(id), 0) FROM outbox.message;

-- name: sent
-- Messages with ids above $1, those of the open transaction included, in the order in which they were sent.
SELECT m.id, m.message_id, m.topic, m.key, m.body, m.headers::text, m.tags, m.index_keys, m.order_key, m.state,
    m.producer_group, m.deliver_at, m.deliver_before
FROM outbox.message m
WHERE m.id > $1::bigint
ORDER BY m.id;

-- name: publishable
-- Of the messages with ids above $1, those that a relay would publish now, in its order, with what their records are
-- made of; $2: also those whose time has not come, as if it came in the order of their times. The columns of a topic
-- that is not registered are null.
SELECT m.id, m.position, m.message_id, m.topic, m.key, m.body, m.headers::text, m.order_key, m.queue, m.selector,
    t.selector, t.partitions, (pg_catalog.date_part('epoch', m.born_at) * 1000::float8)::bigint::text,
    (pg_catalog.date_part('epoch', m.deliver_at) * 1000::float8)::bigint::text, m.tags, m.index_keys, m.producer_group,
    m.transaction_id, m.traceparent
FROM outbox.message m LEFT JOIN outbox.topic t ON t.name = m.topic
WHERE m.id > $1::bigint AND m.state = 'COMMITTED'
    AND ($2::boolean OR m.deliver_at IS NULL OR m.deliver_at <= pg_catalog.clock_timestamp())
    AND (m.deliver_before IS NULL OR m.deliver_before > pg_catalog.clock_timestamp())
ORDER BY CASE WHEN m.deliver_at > pg_catalog.clock_timestamp() THEN m.deliver_at END NULLS FIRST, m.position;

-- name: undecided
-- Of the messages with ids above $1 the half messages without a decision, as their checker would get them; see "claim"
-- in checking.sql. The first column is their producer group.
SELECT m.producer_group, m.id, 'ask', m.message_id, m.topic, m.born_at, m.key, m.body, m.headers::text, m.order_key,
    m.tags, m.index_keys, m.transaction_id, m.checker, m.biz_type, m.biz_id, m.deliver_at, m.traceparent, 0
FROM outbox.message m
WHERE m.id > $1::bigint AND m.state = 'UNKNOWN'
ORDER BY m.id;
