-- Producer groups of a benchmark, half messages that nobody decided, and how they were decided.

-- name: register
-- Groups that are asked over HTTP as far as the database knows; the benchmark's askers answer in its own process.
INSERT INTO outbox.producer_group (name, message_type, check_after, callback)
SELECT name, 'TRANSACTION', %(check_after)s * interval '1 s', '{"kind": "http", "url": "http://127.0.0.1:9/"}'
FROM unnest(%(names)s::text[]) name

-- name: linger
-- Half messages of a group, written an hour ago.
INSERT INTO outbox.message (topic, key, body, tags, producer_group, born_at, state)
SELECT 'bench', convert_to('order-' || n, 'UTF8'), convert_to(repeat('x', 200), 'UTF8'), '{created}', %(group)s::text,
       clock_timestamp() - interval '1 hour', 'UNKNOWN'
FROM generate_series(1, %(count)s::int) n

-- name: settle
-- What autovacuum would do.
VACUUM (ANALYZE) outbox.message

-- name: undecided
-- Half messages of healthy groups that are undecided.
SELECT count(*) FROM outbox.message WHERE state = 'UNKNOWN' AND producer_group = ANY (%(names)s)

-- name: decided
-- Decisions of all groups, and the seconds from the first to the last.
SELECT count(*), extract(epoch FROM max(decided_at) - min(decided_at))::float8
FROM outbox.message WHERE state = 'COMMITTED'

-- name: asked
-- How often half messages of a group were asked about.
SELECT coalesce(sum(checks), 0)::bigint FROM outbox.pending_check WHERE producer_group = %(group)s
