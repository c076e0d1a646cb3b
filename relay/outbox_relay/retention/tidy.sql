-- What stands beside the messages and is of no further use. Deleted in portions, each a short transaction of its own,
-- leaving out what somebody has locked.

-- name: idempotency
-- Idempotency keys older than the retention whose messages are gone: a key protects at least as long as its message is
-- there. "lowers" and "uppers" are the ranges that still have a table.
WITH old AS MATERIALIZED (
    SELECT i.producer_group, i.key FROM outbox.idempotency i
    WHERE i.born_at < clock_timestamp() - %(age)s::interval AND i.id < %(newest)s
        AND NOT EXISTS (SELECT FROM unnest(%(lowers)s::bigint[], %(uppers)s::bigint[]) r (lower, upper)
                        WHERE i.id >= r.lower AND i.id < r.upper)
    LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox.idempotency i USING old o WHERE i.producer_group = o.producer_group AND i.key = o.key

-- name: pending_check
-- Rows of half messages that are decided, or gone, and that no checker is asking about at this moment: the next check
-- would find them so and remove them, if there were a checker for their group.
WITH old AS MATERIALIZED (
    SELECT c.id FROM outbox.pending_check c
    WHERE (c.asked_by IS NULL OR c.due_at < clock_timestamp())
        AND NOT EXISTS (SELECT FROM outbox.message m
                        WHERE m.id = c.id AND m.message_id = c.message_id AND m.state = 'UNKNOWN')
    LIMIT %(most)s FOR UPDATE SKIP LOCKED
)
DELETE FROM outbox.pending_check c USING old o WHERE c.id = o.id
