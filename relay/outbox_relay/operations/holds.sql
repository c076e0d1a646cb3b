-- Holds, as operators see them: what cannot be published now, and what waits behind it.

-- name: held
-- One row per hold. Of a key or a message: "id" fails. A topic, or a partition, once for each error, though each lane has a row of it:
-- all its messages wait, and "id" was the first of them.
SELECT CASE WHEN k.queue IS NULL AND k.order_key IS NULL THEN 'message' ELSE 'key' END AS kind,
       ARRAY[k.lane] AS lanes, k.topic, k.queue, k.order_key, k.head AS id, k.error, k.since, k.tries, k.requested_at,
       k.draining_at IS NOT NULL AS is_being_tried, true AS may_be_given_up, ARRAY[k.number] AS numbers
FROM outbox.parked_key k
WHERE NOT k.is_topic AND k.partition IS NULL AND {keys}
UNION ALL
SELECT CASE WHEN k.is_topic THEN 'topic' ELSE 'partition' END, array_agg(k.lane ORDER BY k.lane), k.topic, k.partition, NULL,
       (array_agg(k.head ORDER BY k.number DESC))[1], (array_agg(k.error ORDER BY k.number DESC))[1], min(k.since),
       max(k.tries), max(k.requested_at), bool_or(k.draining_at IS NOT NULL), false, array_agg(k.number)
FROM outbox.parked_key k
WHERE (k.is_topic OR k.partition IS NOT NULL) AND {topics}
GROUP BY k.topic, k.partition, k.is_topic, split_part(k.error, ':', 1)

-- name: columns
-- The holds that are chosen, with how many messages are behind the one that fails; of a topic or a partition "id" still waits. What waits is joined at once, as in "groups".
WITH alive AS (
    SELECT l.lane FROM outbox.lane l JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner
    WHERE e.leased_until > clock_timestamp()
), held AS (
    {held}
), chosen AS (
    SELECT h.* FROM held h
    WHERE (%(topic)s::text IS NULL OR h.topic = %(topic)s)
        AND (%(error)s::text IS NULL OR split_part(h.error, ':', 1) = %(error)s)
        AND (%(older)s::float IS NULL OR h.since <= clock_timestamp() - make_interval(secs => %(older)s))
    ORDER BY h.since, h.id LIMIT %(most)s
), behind AS (
    SELECT c.numbers[1] AS number, count(*) AS messages, min(b.id) FILTER (WHERE c.kind IN ('topic', 'partition')) AS first
    FROM chosen c CROSS JOIN LATERAL unnest(c.numbers) n (number) JOIN outbox.waiting b ON b.parked = n.number
    WHERE c.kind IN ('topic', 'partition') OR b.id <> c.id
    GROUP BY 1
)
SELECT c.kind, c.lanes, c.topic, c.queue, c.order_key, coalesce(b.first, c.id) AS id, w.message_id, c.error, c.since, c.tries, c.requested_at,
       c.is_being_tried, coalesce(w.in_doubt, false) AS in_doubt, c.may_be_given_up, c.numbers,
       EXISTS (SELECT FROM alive a WHERE a.lane = ANY (c.lanes)) AS has_relay,
       coalesce(b.messages, 0) AS waiting
FROM chosen c LEFT JOIN behind b ON b.number = c.numbers[1] LEFT JOIN outbox.waiting w ON w.id = coalesce(b.first, c.id)
ORDER BY c.since, c.id

-- name: groups
-- All holds by kind, topic and error, the oldest first: how many, with how many messages behind those that fail. What waits is
-- joined at once: a look-up for each hold reads the whole table thousands of times where statistics are older than the holds.
WITH held AS (
    {held}
), behind AS (
    SELECT h.kind, h.topic, split_part(h.error, ':', 1) AS code, count(*) AS messages
    FROM held h CROSS JOIN LATERAL unnest(h.numbers) n (number) JOIN outbox.waiting b ON b.parked = n.number
    WHERE h.kind IN ('topic', 'partition') OR b.id <> h.id
    GROUP BY 1, 2, 3
), grouped AS (
    SELECT h.kind, h.topic, split_part(h.error, ':', 1) AS code, (array_agg(h.error ORDER BY h.since, h.id))[1] AS error,
           count(*) AS holds, min(h.since) AS since
    FROM held h GROUP BY 1, 2, 3
)
SELECT g.kind, g.topic, g.error, g.holds, g.since,
       extract(epoch FROM clock_timestamp() - g.since)::float8 AS age_seconds, coalesce(b.messages, 0) AS waiting
FROM grouped g LEFT JOIN behind b ON (b.kind, b.topic, b.code) = (g.kind, g.topic, g.code)
ORDER BY g.since, g.kind, g.topic

-- name: of_key
-- One key or message.
k.number = %(number)s

-- name: of_topic
-- All rows of the topic of one row, with its error.
(k.topic, coalesce(k.partition, -1), split_part(k.error, ':', 1)) = (
    SELECT t.topic, coalesce(t.partition, -1), split_part(t.error, ':', 1) FROM outbox.parked_key t WHERE t.number = %(number)s
)

-- name: number
-- The number of the hold for which a message waits, and whether that is of a topic or partition; null: it waits for something
-- else.
SELECT w.parked, k.is_topic OR k.partition IS NOT NULL
FROM outbox.waiting w LEFT JOIN outbox.parked_key k ON k.number = w.parked WHERE w.id = %(id)s

-- name: waiting
-- The first messages of a hold, in their order: failed, or held.
SELECT w.id, w.message_id, CASE w.reason WHEN 'parked' THEN 'held' ELSE w.reason END AS reason, w.in_doubt, w.since
FROM outbox.waiting w WHERE w.parked = ANY (%(numbers)s) ORDER BY w.place LIMIT %(most)s

-- name: release
-- Asks the owners of keys and topics to publish their messages again, in order. Those that somebody holds (a message is
-- being given up), or that are being tried, are left as they are.
UPDATE outbox.parked_key k SET requested_at = clock_timestamp(), requested_by = outbox.actor()
WHERE k.number IN (SELECT o.number FROM outbox.parked_key o WHERE o.number = ANY (%(numbers)s) AND o.draining_at IS NULL
                   FOR NO KEY UPDATE SKIP LOCKED)
RETURNING k.number
