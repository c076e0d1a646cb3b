-- Listing half messages that somebody has to decide. {conditions} is put together from the "by_…" blocks of this file
-- and of operations/messages.sql; values are always bound. The index message_unsettled holds them by group and id; the
-- condition on all its states is said again in each statement, because only then the index is used.

-- name: settings
-- For this transaction: walk the index in its order and stop at the end of the page. With a million undecided messages
-- of one group, and statistics that are young, the planner would rather read and sort them all.
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', %(bitmaps)s, true)

-- name: page
-- One page of one group, or of all groups, the oldest first. The groups are found by stepping from one to the next
-- through the index, and a page is taken of each; the oldest of these are the page.
WITH RECURSIVE producer AS (
    (SELECT m.producer_group FROM outbox.message m
     WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group IS NOT NULL
         AND (%(group)s::text IS NULL OR m.producer_group = %(group)s::text)
     ORDER BY m.producer_group LIMIT 1)
    UNION ALL
    SELECT (SELECT m.producer_group FROM outbox.message m
            WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group > p.producer_group
            ORDER BY m.producer_group LIMIT 1)
    FROM producer p WHERE p.producer_group IS NOT NULL AND %(group)s::text IS NULL
), found AS MATERIALIZED (
    SELECT f.id FROM producer p CROSS JOIN LATERAL (
        SELECT m.id FROM outbox.message m
        WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.producer_group = p.producer_group AND {conditions}
        ORDER BY m.producer_group, m.id LIMIT %(limit)s
    ) f
    ORDER BY f.id LIMIT %(limit)s
)
{described}
FROM found f JOIN outbox.message m ON m.id = f.id
{joined}
ORDER BY m.id

-- name: rare
-- One page of what another index finds: the messages of an index key.
WITH found AS MATERIALIZED (
    SELECT m.id FROM outbox.message m
    WHERE (%(group)s::text IS NULL OR m.producer_group = %(group)s::text) AND {conditions}
    ORDER BY m.id + 0 LIMIT %(limit)s
)
{described}
FROM found f JOIN outbox.message m ON m.id = f.id
{joined}
ORDER BY m.id

-- name: one
-- One half message, whatever became of it.
{described}
FROM outbox.message m
{joined}
WHERE {conditions}

-- name: described
-- What is told of a half message. Its next check is in outbox.pending_check once a checker has met it; before that it
-- follows from its birth. A checker that is asking at this moment has written its name there, and the end of its claim
-- as the due time; one that could not ask has written why. The checks of one that is EXHAUSTED or decided are in the
-- audit alone.
SELECT m.id, m.message_id, m.state, m.topic, m.key, m.tags, m.index_keys, m.producer_group, m.transaction_id,
       m.checker, m.biz_type, m.biz_id, m.born_at, m.decided_at, m.deliver_at, m.remark,
       extract(epoch FROM clock_timestamp() - m.born_at)::float8 AS age,
       coalesce(c.checks, a.checks)::integer AS checks, coalesce(g.max_checks, 15) AS max_checks,
       CASE WHEN m.state = 'UNKNOWN' THEN
           coalesce(c.due_at, m.born_at + coalesce(m.check_after, g.check_after, interval '6 seconds')) END AS due_at,
       CASE WHEN m.state = 'UNKNOWN' THEN m.born_at + coalesce(g.max_age, interval '72 hours') END AS expires_at,
       coalesce(g.policy, 'ROLLBACK') AS policy,
       a.answer AS last_answer, a.reason AS last_remark, a.happened_at AS answered_at, a.actor AS answered_by,
       CASE WHEN c.due_at > clock_timestamp() THEN c.asked_by END AS being_asked_by,
       CASE WHEN c.asked_by IS NULL AND c.answer IS NULL THEN c.remark END AS not_asked

-- name: joined
-- Where that stands: the checker's row, the group's settings, the last check in the audit.
LEFT JOIN outbox.pending_check c ON c.id = m.id AND m.state = 'UNKNOWN'
LEFT JOIN outbox.producer_group g ON g.name = m.producer_group
LEFT JOIN LATERAL (
    SELECT e.happened_at, e.answer, e.reason, e.actor,
           (SELECT count(*) FROM outbox.event n
            WHERE n.id = m.id AND n.message_id = m.message_id AND n.kind = 'check') AS checks
    FROM outbox.event e
    WHERE e.id = m.id AND e.message_id = m.message_id AND e.kind = 'check'
    ORDER BY e.happened_at DESC LIMIT 1
) a ON true

-- name: by_states
-- Undecided, or left to an operator.
m.state = ANY (%(states)s::text[])

-- name: by_after
-- Beyond the last page.
m.id > %(after)s

-- name: by_overdue
-- Due for longer than a checker takes to get to it, and not asked about.
m.state = 'UNKNOWN' AND coalesce(
    (SELECT c.due_at FROM outbox.pending_check c WHERE c.id = m.id),
    m.born_at + coalesce(m.check_after,
        (SELECT g.check_after FROM outbox.producer_group g WHERE g.name = m.producer_group), interval '6 seconds')
    ) < statement_timestamp() - make_interval(secs => %(overdue)s)

-- name: now
-- The database's clock, by which everything is due.
SELECT clock_timestamp()
