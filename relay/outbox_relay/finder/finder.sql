-- The statements that find rows. {…} is filled in by finder.py with the quoted names of live partitions only.

-- name: settings
-- Session settings without which the planner goes astray: on an empty partition every plan costs the same, and a
-- plan made then is kept; a parallel plan starts processes at every poll. A process that freezes in a transaction gives
-- up its locks after a lease.
SELECT set_config('plan_cache_mode', 'force_generic_plan', false),
       set_config('enable_seqscan', 'off', false),
       set_config('max_parallel_workers_per_gather', '0', false),
       set_config('jit', 'off', false),
       set_config('synchronous_commit', 'on', false),
       set_config('timezone', 'UTC', false),
       set_config('datestyle', 'ISO', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('statement_timeout', '0', false),
       set_config('lock_timeout', '0', false),
       set_config('idle_in_transaction_session_timeout', %(lease_ms)s, false),
       set_config('idle_session_timeout', '0', false)

-- name: poll
-- The difference of two snapshots, first page: rows that this statement's snapshot sees and the previous one did
-- not, in position order. The first row is a header: how many rows there are (one more than a page: there are
-- more), the newest position given out, and this statement's snapshot. "position + 0" keeps the planner from
-- walking an index of positions; "bytes" bounds the memory of a page whose bodies are large.
WITH found AS MATERIALIZED (
    SELECT * FROM ({branches}) m ORDER BY position + 0 LIMIT %(page)s + 1
), cut AS (
    SELECT *, coalesce(sum(octet_length(body)) OVER (
        ORDER BY position + 0 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS bytes_before
    FROM found
)
SELECT (SELECT count(*) FROM found) AS position, (SELECT last_value FROM outbox.position) AS id,
       NULL::smallint AS lane, pg_current_snapshot()::text AS topic, NULL::bytea AS key, NULL::bytea AS body,
       NULL::bytea AS arg, NULL::integer AS queue, NULL::text AS selector, NULL::text AS message_id,
       NULL::text AS born_at, NULL::text AS headers, NULL::text AS tags, NULL::text AS index_keys,
       NULL::text AS producer_group, NULL::text AS transaction_id, NULL::text AS traceparent,
       NULL::text AS waiting
UNION ALL
SELECT {columns} FROM cut m WHERE bytes_before < %(bytes)s

-- name: branch
-- One live partition of the difference. Each half is an index scan of its own: an OR would not use the index.
SELECT * FROM {partition} WHERE lane = ANY (%(lanes)s::smallint[]) AND xid >= %(xmax)s::xid8
    AND state = 'COMMITTED'
UNION ALL
SELECT * FROM {partition} WHERE lane = ANY (%(lanes)s::smallint[]) AND xid = ANY (%(xip)s::xid8[])
    AND state = 'COMMITTED'

-- name: columns
-- What a Kafka record is made of, in types that are cheap to read. The last one: null is to be published; else the
-- message waits, for whatever reason, until that time (as text whose order is that of time). It is looked up per
-- row that is returned: a join would read all that waits at every poll.
position, id, lane, topic, key, body, coalesce(order_key, key), queue, selector, message_id::text,
       (date_part('epoch', born_at) * 1000)::bigint::text, headers::text,
       CASE WHEN tags <> '{{}}' THEN array_to_string(tags, '||') END,
       CASE WHEN index_keys <> '{{}}' THEN array_to_string(index_keys, ' ') END,
       producer_group, transaction_id, traceparent,
       (SELECT least(w.due_at, '9999-01-01')::text FROM outbox.waiting w WHERE w.id = m.id)

-- name: backlog
-- A large difference, once, as a list of ids in position order (8 bytes each, big-endian): what "cur" sees and the
-- previous snapshot did not, beyond a position.
SELECT string_agg(int8send(id), ''::bytea ORDER BY position)
FROM (SELECT id, position FROM ({branches}) m ORDER BY position + 0 LIMIT %(most)s) m

-- name: backlog_branch
-- One live partition of a large difference.
SELECT id, position FROM {partition} WHERE lane = ANY (%(lanes)s::smallint[]) AND xid >= %(xmax)s::xid8
    AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[]) AND position > %(after)s
    AND state = 'COMMITTED'
UNION ALL
SELECT id, position FROM {partition} WHERE lane = ANY (%(lanes)s::smallint[]) AND xid = ANY (%(xip)s::xid8[])
    AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[]) AND position > %(after)s
    AND state = 'COMMITTED'

-- name: unpublished
-- The same when no progress is known (a new schema, a restore, another cluster): all that has no publication.
SELECT string_agg(int8send(id), ''::bytea ORDER BY position)
FROM (
    SELECT m.id, m.position FROM outbox.message m
    WHERE m.lane = ANY (%(lanes)s::smallint[]) AND m.state = 'COMMITTED' AND m.position > %(after)s
        AND m.xid < %(cur_xmax)s::xid8 AND NOT m.xid = ANY (%(cur_xip)s::xid8[])
        AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b) p
                        WHERE p.position = m.position)
    ORDER BY m.position LIMIT %(most)s
) m

-- name: page
-- Rows of a backlog by id, in position order. The bounds prune partitions when the statement starts. A row that got
-- a new xid and position since it was listed (released when it fell due, retried) belongs to a later difference.
-- State and xid are asked outside: inside they would lead the planner to the finder's index, all of it, for a page.
SELECT {columns} FROM (
    SELECT *, sum(octet_length(body)) OVER (
        ORDER BY position + 0 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM outbox.message
    WHERE id = ANY (%(ids)s::bigint[]) AND id BETWEEN %(lowest)s AND %(highest)s
) m
WHERE (bytes_before IS NULL OR bytes_before < %(bytes)s)
    AND state = 'COMMITTED' AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[])
ORDER BY position + 0

-- name: dense_page
-- The same where the ids follow each other closely: one walk over their range instead of one descent per id.
-- Rows between them that are not on the list are left out by the caller.
SELECT {columns} FROM (
    SELECT *, sum(octet_length(body)) OVER (
        ORDER BY position + 0 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM outbox.message
    WHERE id BETWEEN %(lowest)s AND %(highest)s
) m
WHERE (bytes_before IS NULL OR bytes_before < %(bytes)s)
    AND state = 'COMMITTED' AND xid < %(cur_xmax)s::xid8 AND NOT xid = ANY (%(cur_xip)s::xid8[])
ORDER BY position + 0

-- name: here
-- A snapshot and the newest position given out, for a lane that joins.
SELECT pg_current_snapshot()::text, (SELECT last_value FROM outbox.position)

-- name: take_xid
-- Take an xid, and end. A snapshot ends at the newest transaction that has ended; one that still runs may have a higher xid,
-- and is in no list of that snapshot. After this, every xid that was given out before lies below a snapshot's xmax.
SELECT pg_current_xact_id()
