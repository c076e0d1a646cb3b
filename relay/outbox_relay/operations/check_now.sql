-- Asking about half messages ahead of their time.

-- name: due_now
-- Makes an undecided half message due. A checker that has met it has a row for it, else it gets one, as a checker would
-- have written at its first turn. One that is being asked about at this moment keeps the end of that claim as its due
-- time. No row: it is not undecided (any more).
INSERT INTO outbox.pending_check AS c (id, message_id, producer_group, due_at)
SELECT m.id, m.message_id, m.producer_group, clock_timestamp()
FROM outbox.message m
WHERE m.id = %(id)s AND m.message_id = %(message_id)s AND m.state = 'UNKNOWN'
ON CONFLICT (id) DO UPDATE
SET due_at = CASE WHEN c.asked_by IS NULL THEN least(c.due_at, EXCLUDED.due_at) ELSE c.due_at END
RETURNING c.due_at, c.checks, CASE WHEN c.due_at > clock_timestamp() THEN c.asked_by END AS being_asked_by
