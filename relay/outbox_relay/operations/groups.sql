-- The registry of producer groups, as operators use it.

-- name: all
-- Every registered group.
SELECT name, message_type, check_after, check_interval, max_check_interval, check_timeout, max_age,
       max_checks, policy, workers, callback, role, registered_at
FROM outbox.producer_group ORDER BY name

-- name: get
-- One registered group.
SELECT name, message_type, check_after, check_interval, max_check_interval, check_timeout, max_age,
       max_checks, policy, workers, callback, role, registered_at
FROM outbox.producer_group WHERE name = %(name)s

-- name: lock
-- One registered group, for this transaction alone to change.
SELECT name, message_type, check_after, check_interval, max_check_interval, check_timeout, max_age,
       max_checks, policy, workers, callback, role, registered_at
FROM outbox.producer_group WHERE name = %(name)s FOR UPDATE

-- name: alarms
-- What checkers say about groups, the oldest first.
SELECT producer_group, kind, detail, since, seen_at,
       extract(epoch FROM clock_timestamp() - since)::float8 AS age,
       extract(epoch FROM clock_timestamp() - seen_at)::float8 AS seen
FROM outbox.alarm WHERE %(name)s::text IS NULL OR producer_group = %(name)s::text
ORDER BY since, producer_group, kind

-- name: settings
-- For this transaction: counting what is unsettled goes by its index.
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true),
       set_config('enable_seqscan', 'off', true)

-- name: halves
-- Half messages that somebody has to decide, per group: undecided, of these overdue (due for so many seconds and not
-- asked about), left to an operator, and the age of the oldest in seconds.
SELECT m.producer_group,
       count(*) FILTER (WHERE m.state = 'UNKNOWN') AS undecided,
       count(*) FILTER (WHERE m.state = 'UNKNOWN' AND
           coalesce(c.due_at, m.born_at + coalesce(m.check_after, g.check_after, interval '6 seconds'))
           < statement_timestamp() - make_interval(secs => %(overdue)s)) AS overdue,
       count(*) FILTER (WHERE m.state = 'EXHAUSTED') AS exhausted,
       extract(epoch FROM clock_timestamp() - min(m.born_at))::float8 AS oldest
FROM outbox.message m
LEFT JOIN outbox.pending_check c ON c.id = m.id
LEFT JOIN outbox.producer_group g ON g.name = m.producer_group
WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD') AND m.state <> 'DEAD'
    AND (%(name)s::text IS NULL OR m.producer_group = %(name)s::text)
GROUP BY m.producer_group ORDER BY m.producer_group
