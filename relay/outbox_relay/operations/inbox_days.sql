-- Days of birth of the inbox: what `outbox inbox` reads of them. A day is read through outbox.inbox, whose rights readers have.

-- name: days
-- The partitions of the inbox with rows (as last counted by PostgreSQL) and bytes; the DEFAULT partition has no day.
SELECT c.relname, CASE WHEN c.relname <> 'inbox_default' THEN to_date(substr(c.relname, 8), 'YYYYMMDD') END AS day,
    greatest(c.reltuples, 0)::bigint, pg_total_relation_size(c.oid)
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'outbox.inbox'::regclass AND c.relname ~ '^inbox_(d[0-9]{8}|default)$'
ORDER BY day;

-- name: now
-- The server's time, by which ages are counted.
SELECT clock_timestamp();

-- name: facts
-- How far the rows of a day go in each partition of Kafka, how many there are, and when the last one was handled.
SELECT i.topic_id, i.part, max(i.off), count(*), max(i.handled_at)
FROM outbox.inbox i
WHERE i.born_on = %(day)s
GROUP BY i.topic_id, i.part;

-- name: groups
-- The groups that have rows of a day, found by jumps in the primary key.
WITH RECURSIVE found AS (
    (SELECT i.group_id FROM outbox.inbox i WHERE i.born_on = %(day)s ORDER BY i.group_id LIMIT 1)
    UNION ALL
    SELECT (SELECT i.group_id FROM outbox.inbox i
            WHERE i.born_on = %(day)s AND i.group_id > f.group_id ORDER BY i.group_id LIMIT 1)
    FROM found f WHERE f.group_id IS NOT NULL
)
SELECT f.group_id FROM found f WHERE f.group_id IS NOT NULL;

-- name: parked
-- How many messages of a day are parked.
SELECT count(*) FROM outbox.inbox_parked p WHERE p.born_on = %(day)s;

-- name: topics
-- Topics by their numbers.
SELECT t.id, t.name, t.kafka_id FROM outbox.inbox_topic t ORDER BY t.id;

-- name: positions
-- Where groups are in the topics that they read.
SELECT coalesce(g.name, p.group_id::text), p.topic_id, p.part, p.next_off
FROM outbox.inbox_position p LEFT JOIN outbox.consumer_group g ON g.id = p.group_id
WHERE p.group_id = ANY (%(groups)s::integer[])
ORDER BY 1, p.topic_id, p.part;
