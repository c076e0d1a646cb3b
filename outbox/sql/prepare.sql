-- Half messages: how the library stores one. What stands in braces, and how parameters are numbered: see send.sql; $+1 is
-- the lane. The table's trigger notes the birth.

-- name: prepare
-- One half message, one round trip; $+2 is check_after.
INSERT INTO outbox.message ({columns}, lane, check_after, state)
VALUES ({values}, $+1, $+2, 'UNKNOWN')
RETURNING id, message_id;

-- name: prepare_with_message_id
-- The same with the application's own message id ($+3).
INSERT INTO outbox.message ({columns}, lane, check_after, state, message_id)
VALUES ({values}, $+1, $+2, 'UNKNOWN', $+3)
RETURNING id, message_id;

-- name: prepare_once
-- Prepares unless the key ($producer_group group, $+2 key) is known, and notes it with the digest ($+3); $+4 is check_after. See
-- send_once in send.sql.
WITH known AS MATERIALIZED (
    SELECT id, message_id, digest FROM outbox.idempotency WHERE producer_group = $producer_group::text AND key = $+2::text
), sent AS (
    INSERT INTO outbox.message ({columns}, lane, check_after, state)
    SELECT {typed}, $+1::smallint, $+4::interval, 'UNKNOWN'
    WHERE NOT EXISTS (SELECT FROM known)
    RETURNING id, message_id
), noted AS (
    INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id)
    SELECT $producer_group::text, $+2::text, $+3::bytea, id, message_id FROM sent
    ON CONFLICT DO NOTHING
    RETURNING id, message_id
)
SELECT id, message_id, NULL::bytea AS digest FROM noted
UNION ALL
SELECT id, message_id, digest FROM known;
