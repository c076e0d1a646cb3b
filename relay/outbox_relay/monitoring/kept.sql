-- What the figures of a database hold besides those of `outbox status`; see kept.py.

-- name: held
-- Messages that fail, or wait for a hold, by topic: they are part of its backlog. The age is that of the commit, as there.
SELECT m.topic, count(*),
       extract(epoch FROM clock_timestamp() - min(greatest(m.born_at, m.decided_at, m.deliver_at)))::float8
FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id
WHERE w.reason IN ('parked', 'failed', 'held') GROUP BY m.topic

-- name: unsent
-- For how many seconds the oldest alarm, or end of one, has waited to be pushed to the webhook; nothing waits: NULL.
SELECT extract(epoch FROM clock_timestamp() - min(CASE WHEN n.raise_sent_at IS NULL THEN n.raised_at ELSE n.cleared_at END))
           ::float8
FROM outbox.notice n WHERE n.raise_sent_at IS NULL OR n.cleared_at IS NOT NULL

-- name: oldest
-- The age of the oldest message that is kept, by its id: partitions are read in the order of their ids.
SELECT extract(epoch FROM clock_timestamp() - m.born_at)::float8 FROM outbox.message m ORDER BY m.id LIMIT 1

-- name: inbox
-- Bytes of all days of the inbox, and the age of the end of the oldest one that has a partition of its own.
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::float8,
       extract(epoch FROM clock_timestamp()
               - min(to_date(substr(c.relname, 8), 'YYYYMMDD') + 1) FILTER (WHERE c.relname <> 'inbox_default'))::float8
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'outbox.inbox'::regclass AND c.relname ~ '^inbox_(d[0-9]{8}|default)$'
