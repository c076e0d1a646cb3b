-- Delayed messages: they wait in outbox.waiting, and join the order when they are due.

-- name: next_due
-- Seconds until the next delayed message is due; NULL when none waits.
SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM outbox.waiting WHERE due_at IS NOT NULL

-- name: release
-- Let due messages go: out of waiting, and with a new xid and position, as if they were committed now. One
-- statement, so that a message is either waiting or to be found, whatever dies.
WITH due AS (
    DELETE FROM outbox.waiting w
    WHERE w.id IN (SELECT d.id FROM outbox.waiting d
                   WHERE d.reason = 'delayed' AND d.due_at <= clock_timestamp()
                   ORDER BY d.due_at, d.id LIMIT 1000)
    RETURNING w.id
)
UPDATE outbox.message m SET xid = pg_current_xact_id(), position = nextval('outbox.position')
FROM due WHERE m.id = due.id AND m.state = 'COMMITTED'
