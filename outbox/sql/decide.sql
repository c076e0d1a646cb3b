-- How a half message is decided: one compare-and-set, and only where it found nothing to set, a second statement that
-- tells what was decided before. A row is named by id and message id: ids can be issued again after a fail-over.
-- Times are whole microseconds since 1970, which no setting of the session changes.
--
-- {range} and pg_backend_pid() are for the planner. It keeps one plan for all values of $1, in which {range}, literal ids around the
-- message (outbox/operations/ranges.py), leaves its partition or two; an execution locks and opens all that the plan has.
-- With a plain $1 a plan for the value alone looks cheaper where two are left, and it plans anew at each execution, which costs
-- more than the execution. An expression that is stable, not constant, has the same price for all values, and the partition
-- that it needs not is still left out when the execution begins. With a plain state in place of state || '' it may choose the
-- index message_unsettled while the partition is empty, and the plan then reads all of it later.

-- name: decide
-- Gives the half message ($1 id, $2 message id) its verdict ($3), with the remark ($4). The trigger make_transition takes
-- its xid and position and writes the audit. Who comes second waits for the first to end: if it committed, the row is
-- no longer UNKNOWN and nothing is returned; if it rolled back, this verdict is the one.
UPDATE outbox.message
SET state = $3, remark = $4
WHERE id = $1::bigint + (pg_catalog.pg_backend_pid() & 0) AND {range} AND message_id = $2::uuid AND state || '' = 'UNKNOWN'
RETURNING state, outbox.actor(), (extract(epoch FROM decided_at) * 1000000::numeric)::bigint, remark;

-- name: read_decision
-- The state of a message ($1 id, $2 message id) and the transition that decided it, null where there was none. It runs
-- after "decide" found nothing, as a statement of its own: under READ COMMITTED it has a newer snapshot, so it sees the
-- decision that "decide" waited for. EXHAUSTED is a decision until an operator makes another.
SELECT m.state, e.to_state, e.actor, (extract(epoch FROM e.happened_at) * 1000000::numeric)::bigint, e.reason
FROM outbox.message m
LEFT JOIN LATERAL (
    SELECT t.to_state, t.actor, t.happened_at, t.reason
    FROM outbox.event t
    WHERE t.id = $1::bigint AND t.message_id = $2::uuid AND t.kind = 'transition'
        AND t.from_state IN ('UNKNOWN', 'EXHAUSTED')
    ORDER BY t.to_state = 'EXHAUSTED', t.happened_at DESC
    LIMIT 1
) e ON true
WHERE m.id = $1::bigint AND m.message_id = $2::uuid;

-- name: join
-- Takes the row lock of an undecided half message ($1 id, $2 message id) until the transaction ends: a locked one is a
-- running local transaction, which checkers neither ask about nor decide.
SELECT id
FROM outbox.message
WHERE id = $1::bigint + (pg_catalog.pg_backend_pid() & 0) AND {range} AND message_id = $2::uuid AND state || '' = 'UNKNOWN'
FOR NO KEY UPDATE;

-- name: find_foreign
-- The ids behind a message id ($1) that the application made itself, by the index of such ids. It is not unique there;
-- two are enough to know that.
SELECT id
FROM outbox.message
WHERE message_id = $1::uuid AND pg_catalog.get_byte(pg_catalog.uuid_send(message_id), 6) >> 4 <> 8
LIMIT 2;

-- name: lock_order_key_of
-- Takes the lock of the message's ($1 id, $2 message id) order key that ordered=True takes, and tells whether it has one.
-- A statement of its own before "decide", so that the position is taken under the lock.
SELECT coalesce(order_key, key) IS NOT NULL,
       pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended(topic || ':' || pg_catalog.encode(coalesce(order_key, key), 'hex'), 1))
FROM outbox.message
WHERE id = $1::bigint + (pg_catalog.pg_backend_pid() & 0) AND {range} AND message_id = $2::uuid;
