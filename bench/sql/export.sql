-- The history that the export benchmark exports, and its size.

-- name: partitions
-- Partitions for what will be written.
SELECT outbox.ensure_partitions()

-- name: fill
-- Messages first to last, as the backlog's: bodies of 213 to 232 bytes of JSON, 10,000 keys, a tag, a header; an index key where a
-- beginning is given.
INSERT INTO outbox.message (topic, key, body, headers, tags, index_keys, producer_group)
SELECT %(topic)s::text, convert_to('order-' || n * 7919::bigint %% 10000, 'UTF8'),
       convert_to(format(
           '{"order":"order-%%s","number":%%s,"customer":"customer-%%s","status":"created","currency":"EUR","amount":"%%s.%%s",'
           '"note":"Please ring twice and leave the parcel with the neighbours if nobody answers the door; thank you a lot"}',
           n * 7919::bigint %% 10000, n, n %% 5003, n %% 900 + 100, n %% 90 + 10), 'UTF8'),
       '{"source": "bench"}', '{created}', array_remove(ARRAY[%(index_key)s::text || n], NULL), 'bench'
FROM generate_series(%(first)s::int, %(last)s::int) n

-- name: halves
-- Half messages first to last, otherwise as above; a group per session, so that no session decides another's.
WITH made AS (
    INSERT INTO outbox.message (topic, key, body, headers, tags, index_keys, producer_group, transaction_id, state)
    SELECT %(topic)s::text, convert_to('order-' || n * 7919::bigint %% 10000, 'UTF8'),
           convert_to(format(
               '{"order":"order-%%s","number":%%s,"customer":"customer-%%s","status":"paid","currency":"EUR","amount":"%%s.%%s",'
               '"note":"Please ring twice and leave the parcel with the neighbours if nobody answers the door; thank you a lot"}',
               n * 7919::bigint %% 10000, n, n %% 5003, n %% 900 + 100, n %% 90 + 10), 'UTF8'),
           '{"source": "bench"}', '{paid}', array_remove(ARRAY[%(index_key)s::text || n], NULL), %(group)s::text, 'payment-' || n, 'UNKNOWN'
    FROM generate_series(%(first)s::int, %(last)s::int) n
    RETURNING id
)
SELECT min(id), max(id) FROM made

-- name: checks
-- One in five is asked about once, without an answer.
INSERT INTO outbox.event (id, message_id, kind, answer, actor, reason)
SELECT id, message_id, 'check', 'UNKNOWN', 'checker:bench', 'not decided yet' FROM outbox.message
WHERE state = 'UNKNOWN' AND producer_group = %(group)s AND id BETWEEN %(first)s AND %(last)s AND id %% 5 = 0

-- name: decide
-- One in ten is rolled back, one in fifty stays undecided, the others are committed.
UPDATE outbox.message
SET state = CASE WHEN id %% 10 = 3 THEN 'ROLLED_BACK' ELSE 'COMMITTED' END, remark = 'payment settled'
WHERE state = 'UNKNOWN' AND producer_group = %(group)s AND id BETWEEN %(first)s AND %(last)s AND id %% 50 <> 7

-- name: committed
-- How many messages are to be published.
SELECT count(*) FROM outbox.message WHERE state = 'COMMITTED'

-- name: decide_late
-- Decides undecided half messages spread over the whole history: about so many, or all when there are fewer.
WITH open AS (
    SELECT id, row_number() OVER (ORDER BY id) AS place, count(*) OVER () AS number FROM outbox.message
    WHERE state = 'UNKNOWN' AND producer_group LIKE 'bench-half-%%'
)
UPDATE outbox.message m SET state = 'ROLLED_BACK', remark = 'decided late' FROM open
WHERE m.id = open.id AND m.state = 'UNKNOWN'
    AND open.place %% greatest(open.number / %(most)s::bigint, 1) = 0

-- name: publish
-- Publications as the relay records them, a thousand positions each and none across the bounds of two partitions, of the
-- COMMITTED messages among these ids; recorded 5 ms after the last of the batch was born or decided.
INSERT INTO outbox.publication
    (epoch, batch, lo, hi, lanes, snapshot, published_at, positions, partitions, offsets)
SELECT %(epoch)s::bigint, (position - 1) / 1000, min(position), max(position), '{0,1,2,3,4,5,6,7}', pg_current_snapshot(),
       max(coalesce(decided_at, born_at)) + interval '5 milliseconds', array_agg(position ORDER BY position),
       array_agg((position %% 12)::integer ORDER BY position), array_agg(position / 12 ORDER BY position)
FROM outbox.message
WHERE state = 'COMMITTED' AND id BETWEEN %(first)s AND %(last)s
GROUP BY (position - 1) / 1000, width_bucket(position, (SELECT array_agg(lower ORDER BY lower) FROM outbox.partition))

-- name: settle
-- What autovacuum would do in its own time, and in the middle of a measurement.
VACUUM (ANALYZE) outbox.message, outbox.publication, outbox.event

-- name: counts
-- Rows that an export has to find: messages, published messages, events.
SELECT (SELECT count(*) FROM outbox.message),
       (SELECT coalesce(sum(cardinality(positions)), 0)::bigint FROM outbox.publication),
       (SELECT count(*) FROM outbox.event)

-- name: size
-- Bytes of the database.
SELECT pg_database_size(current_database())

-- name: copy
-- One connection, no Spark; {columns} as the job reads them.
COPY ({columns}) TO STDOUT (FORMAT binary)
