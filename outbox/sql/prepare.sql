-- Half messages: how the library stores one. As in send.sql, xid, position and id are never listed; $1 to $16 are the
-- columns from topic to traceparent, and $17 is the lane, as in `send` and `send_once` there. What follows is named at
-- each statement. The table's trigger notes the birth.

-- name: prepare
-- One half message, one round trip; $18 is check_after.
INSERT INTO outbox.message (topic, key, body, headers, order_key, selector, queue, tags, index_keys, producer_group,
                            transaction_id, checker, biz_type, biz_id, deliver_at, traceparent, lane, check_after,
                            state)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 'UNKNOWN')
RETURNING id, message_id;

-- name: prepare_with_message_id
-- The same with the application's own message id ($19).
INSERT INTO outbox.message (topic, key, body, headers, order_key, selector, queue, tags, index_keys, producer_group,
                            transaction_id, checker, biz_type, biz_id, deliver_at, traceparent, lane, check_after,
                            state, message_id)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, 'UNKNOWN', $19)
RETURNING id, message_id;

-- name: prepare_once
-- Prepares unless the key ($10 group, $18 key) is known, and notes it with the digest ($19); $20 is check_after. See
-- send_once in send.sql.
WITH known AS MATERIALIZED (
    SELECT id, message_id, digest FROM outbox.idempotency WHERE producer_group = $10::text AND key = $18::text
), sent AS (
    INSERT INTO outbox.message (topic, key, body, headers, order_key, selector, queue, tags, index_keys, producer_group,
                                transaction_id, checker, biz_type, biz_id, deliver_at, traceparent, lane, check_after,
                                state)
    SELECT $1::text, $2::bytea, $3::bytea, $4::jsonb, $5::bytea, $6::text, $7::integer, $8::text[], $9::text[],
           $10::text, $11::text, $12::text, $13::text, $14::text, $15::timestamptz, $16::text, $17::smallint,
           $20::interval, 'UNKNOWN'
    WHERE NOT EXISTS (SELECT FROM known)
    RETURNING id, message_id
), noted AS (
    INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id)
    SELECT $10::text, $18::text, $19::bytea, id, message_id FROM sent
    ON CONFLICT DO NOTHING
    RETURNING id, message_id
)
SELECT id, message_id, NULL::bytea AS digest FROM noted
UNION ALL
SELECT id, message_id, digest FROM known;
