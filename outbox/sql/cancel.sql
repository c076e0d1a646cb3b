-- How a delayed message is cancelled. The relay, which releases it when it is due, and a cancellation race for its row in
-- outbox.waiting: the trigger make_transition refuses the one that comes second (constraint message_is_waiting).
--
-- state || '' is for the planner, as in decide.sql: with a plain state a plan that is made while a partition is empty
-- takes the finder's index, and reads all of it later.

-- name: cancel
-- Cancels a message ($1 id, $2 message id, $3 remark) that waits, and whose time has not come; nothing is returned
-- otherwise. (An operator may have let it go earlier: then it waits no more.)
UPDATE outbox.message
SET state = 'CANCELLED', remark = $3
WHERE id = $1::bigint AND message_id = $2::uuid AND state || '' = 'COMMITTED' AND deliver_at > pg_catalog.clock_timestamp()
    AND EXISTS (SELECT FROM outbox.waiting w WHERE w.id = $1::bigint AND w.reason = 'delayed')
RETURNING state, outbox.actor(), (extract(epoch FROM decided_at) * 1000000::numeric)::bigint, remark;

-- name: read_cancelled
-- Why nothing was cancelled: the message's state, its time, whether that has come, and the last transition of it.
SELECT m.state, (extract(epoch FROM m.deliver_at) * 1000000::numeric)::bigint, m.deliver_at <= pg_catalog.clock_timestamp(),
       e.actor, (extract(epoch FROM e.happened_at) * 1000000::numeric)::bigint, e.reason
FROM outbox.message m
LEFT JOIN LATERAL (
    SELECT t.actor, t.happened_at, t.reason
    FROM outbox.event t
    WHERE t.id = $1::bigint AND t.message_id = $2::uuid AND t.kind = 'transition' AND t.to_state = m.state
    ORDER BY t.happened_at DESC
    LIMIT 1
) e ON true
WHERE m.id = $1::bigint AND m.message_id = $2::uuid;

-- name: savepoint
-- Before cancel_overdue, which the trigger may refuse: the caller's transaction must survive that.
SAVEPOINT outbox_cancel;

-- name: cancel_overdue
-- Cancels a message whose time has come, if the relay has not released it yet.
UPDATE outbox.message
SET state = 'CANCELLED', remark = $3
WHERE id = $1::bigint AND message_id = $2::uuid AND state || '' = 'COMMITTED'
RETURNING state, outbox.actor(), (extract(epoch FROM decided_at) * 1000000::numeric)::bigint, remark;

-- name: undo
-- The trigger refused: back to before.
ROLLBACK TO SAVEPOINT outbox_cancel;

-- name: release
-- Leaves no savepoint behind.
RELEASE SAVEPOINT outbox_cancel;
