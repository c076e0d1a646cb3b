-- Delayed messages: they wait in outbox.waiting, and join the order when they are due.

-- name: next_due
-- Seconds until the next delayed message is due (a day at most, also when none waits), and before which time none
-- waits: the next look begins there. Entries of the index that were released stay in it while a snapshot is held, and would be
-- walked at every look.
-- The other reasons are named because the planner takes an unknown one to be rare: with reason = 'delayed', a plan made
-- while nothing waits reads all that waits, at every look.
SELECT extract(epoch FROM greatest(least(min(due_at), clock_timestamp() + interval '1 day'), '0001-01-01')
                          - clock_timestamp())::float8,
       least(min(due_at), clock_timestamp())::text
FROM outbox.waiting WHERE due_at >= %(since)s::timestamptz AND reason <> ALL ('{held,parked}')

-- name: release
-- Let due messages go: out of waiting, and with a new xid and position, as if they were committed now. One
-- statement, so that a message is either waiting or to be found, whatever dies. A message that somebody holds a
-- lock on (a cancellation under way) is left for the next look: the relay waits for nobody.
-- The state is read with the lock and not asked in the UPDATE, where it would lead the planner to another index.
WITH due AS MATERIALIZED (
    SELECT w.id, m.state FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id
    WHERE w.reason = 'delayed' AND w.due_at >= %(since)s::timestamptz
        AND w.due_at <= statement_timestamp() AND m.lane = ANY (%(lanes)s::smallint[])
    ORDER BY w.due_at, w.id LIMIT 1000
    FOR NO KEY UPDATE OF m SKIP LOCKED FOR UPDATE OF w SKIP LOCKED
), released AS (
    DELETE FROM outbox.waiting w USING due WHERE w.id = due.id
    RETURNING w.id, due.state
)
UPDATE outbox.message m SET xid = pg_current_xact_id(), position = nextval('outbox.position')
FROM released WHERE m.id = released.id AND released.state = 'COMMITTED'
