-- What the publisher writes. Publications, and a barrier, are one statement each, and one flushed commit: it is the barrier of what was
-- read before it. Claims, holds and what was announced are written in one transaction with them.

-- name: record
-- One publication, if the lanes of its batches still have our epoch. No row back: the lease is lost.
INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, base, snapshot, after, is_partial, positions, partitions,
    offsets)
SELECT %(epoch)s, %(batch)s, %(lo)s, %(hi)s, %(lanes)s::smallint[], %(base)s::pg_snapshot,
       %(snapshot)s::pg_snapshot, %(after)s, %(is_partial)s, %(positions)s::bigint[], %(partitions)s::integer[],
       %(offsets)s::bigint[]
WHERE (SELECT count(*) FROM outbox.lane
       WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[])) = cardinality(%(mine)s::smallint[])

-- name: barrier
-- A flushed commit that writes no table. After it, nothing that an earlier snapshot saw can be forgotten by a
-- crash, and no xid below that snapshot's xmax can be issued again. No row: a lane that we read has another owner.
SELECT pg_logical_emit_message(true, 'outbox', '')
WHERE (SELECT count(*) FROM outbox.lane
       WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[])) = cardinality(%(mine)s::smallint[])

-- name: own
-- Lock the rows of our lanes against whoever takes them, and count them: a relay that takes a lane has locked its row before it
-- reads which holds there are. FOR KEY SHARE lets all others write these rows; nothing waits for a session that holds one.
SELECT count(*) FROM (
    SELECT lane FROM outbox.lane
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[]) FOR KEY SHARE SKIP LOCKED
) l

-- name: begin_holds
-- Holds that have a row from now on.
INSERT INTO outbox.parked_key (number, lane, topic, partition, partitions, selector, queue, order_key, head, error)
SELECT k.number, k.lane, k.topic, k.partition, k.partitions, k.selector, k.queue, k.order_key, k.head, k.error
FROM unnest(%(numbers)s::bigint[], %(lanes)s::smallint[], %(topics)s::text[], %(parts)s::integer[],
            %(partitions)s::integer[], %(selectors)s::text[], %(queues)s::integer[], %(order_keys)s::bytea[],
            %(heads)s::bigint[], %(errors)s::text[])
     k (number, lane, topic, partition, partitions, selector, queue, order_key, head, error)

-- name: fail_holds
-- Holds at which another message fails: it is their head. A row that another session holds stays as it is.
UPDATE outbox.parked_key k SET head = f.head, error = f.error
FROM unnest(%(numbers)s::bigint[], %(heads)s::bigint[], %(errors)s::text[]) f (number, head, error)
WHERE k.number = f.number
    AND k.number IN (SELECT o.number FROM outbox.parked_key o WHERE o.number = ANY (%(numbers)s::bigint[])
                     FOR NO KEY UPDATE SKIP LOCKED)

-- name: end_requests
-- Holds that failed again: what was requested until then, in seconds since 1970, is over. A request that came meanwhile stays:
-- what it repaired was not seen yet.
UPDATE outbox.parked_key SET requested_at = NULL, requested_by = NULL
WHERE number IN (SELECT o.number FROM unnest(%(numbers)s::bigint[], %(until)s::float8[]) u (number, until)
                 JOIN outbox.parked_key o ON o.number = u.number
                 WHERE extract(epoch FROM o.requested_at)::float8 <= u.until FOR NO KEY UPDATE OF o SKIP LOCKED)

-- name: claim
-- Messages that wait from now on, for a hold, or for ever because they have expired. One that waits already changes its hold,
-- and keeps its doubt. One that has expired since it was published makes no claim: a successor reads what has a publication
-- again where it does not know how far its predecessor was. A claim for a hold that has no row is an error
-- (outbox.refuse_claim): nothing would ever find the message.
WITH unknown AS MATERIALIZED (
    SELECT outbox.refuse_claim(n.number)
    FROM (SELECT DISTINCT number FROM unnest(%(numbers)s::bigint[]) number) n
    WHERE n.number IS NOT NULL AND NOT EXISTS (SELECT FROM outbox.parked_key k WHERE k.number = n.number)
)
INSERT INTO outbox.waiting (id, message_id, reason, parked, place, in_doubt)
SELECT c.id, c.message_id, c.reason, c.parked, CASE WHEN c.parked IS NOT NULL THEN c.place END, c.in_doubt
FROM unnest(%(ids)s::bigint[], %(message_ids)s::uuid[], %(reasons)s::text[], %(numbers)s::bigint[], %(places)s::bigint[],
            %(doubtful)s::boolean[]) c (id, message_id, reason, parked, place, in_doubt)
WHERE NOT EXISTS (SELECT FROM unknown) AND (c.reason <> 'expired' OR NOT c.in_doubt
    OR NOT EXISTS (SELECT FROM outbox.publication b
                   WHERE int8range(b.lo, b.hi, '[]') @> c.place AND b.lo <= c.place AND b.hi >= c.place
                       AND b.positions @> ARRAY[c.place]))
ON CONFLICT (id) DO UPDATE
SET reason = excluded.reason, parked = excluded.parked, place = excluded.place,
    in_doubt = waiting.in_doubt OR excluded.in_doubt

-- name: settle
-- Messages that wait no longer: they were published, or are not to be published any more.
DELETE FROM outbox.waiting WHERE id = ANY (%(ids)s::bigint[])

-- name: retract
-- Nothing of these holds is on its way any more.
UPDATE outbox.parked_key SET draining_at = NULL
WHERE number IN (SELECT o.number FROM outbox.parked_key o WHERE o.number = ANY (%(numbers)s::bigint[])
                 FOR NO KEY UPDATE SKIP LOCKED)
RETURNING number

-- name: let_go
-- Holds for which nothing waits any more. One whose row another session holds stays, and is let go later.
DELETE FROM outbox.parked_key
WHERE number IN (SELECT o.number FROM outbox.parked_key o
                 WHERE o.number = ANY (%(numbers)s::bigint[])
                     AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.parked = o.number)
                 FOR UPDATE SKIP LOCKED)
RETURNING number

-- name: announce
-- The messages of each hold that are published next, by place, from the one in front of which none waits. From this commit on
-- none of them can be given up while it may be on its way to Kafka, and whoever takes the lanes meanwhile finds them in doubt. A
-- hold of a topic or partition has a row for each lane. One of whose rows another session holds is left out.
WITH asked AS MATERIALIZED (
    SELECT a.hold, a.number, a.since FROM unnest(%(holds)s::integer[], %(numbers)s::bigint[], %(sinces)s::bigint[])
                                          a (hold, number, since)
), free AS MATERIALIZED (
    SELECT k.number FROM outbox.parked_key k WHERE k.number = ANY (%(numbers)s::bigint[]) FOR NO KEY UPDATE SKIP LOCKED
), whole AS MATERIALIZED (
    SELECT a.hold FROM asked a LEFT JOIN free f ON f.number = a.number GROUP BY a.hold HAVING count(*) = count(f.number)
), listed AS MATERIALIZED (
    SELECT a.hold, a.number, w.id, w.place, w.in_doubt,
           row_number() OVER (PARTITION BY a.hold ORDER BY w.place) AS rank
    FROM asked a JOIN whole h ON h.hold = a.hold
    CROSS JOIN LATERAL (SELECT o.id, o.place, o.in_doubt FROM outbox.waiting o
                        WHERE o.parked = a.number AND o.place >= a.since ORDER BY o.place LIMIT %(most)s + 1) w
), announced AS (
    UPDATE outbox.parked_key k
    SET draining_at = clock_timestamp(), tries = tries + (k.draining_at IS NULL)::integer,
        draining_to = (SELECT max(l.place) FROM listed l WHERE l.number = k.number AND l.rank <= %(most)s)
    FROM asked a JOIN whole h ON h.hold = a.hold WHERE k.number = a.number
)
SELECT h.hold, l.number, l.id, l.place, l.in_doubt FROM whole h LEFT JOIN listed l ON l.hold = h.hold ORDER BY h.hold, l.place

-- name: end_announcements
-- What an earlier owner announced and did not record: it may be in Kafka. Where
-- another session holds the hold's row, the announcement stays, too, until it is retracted. Only rows of lanes with an
-- announcement are locked: a lane whose row another session holds must not stop the relay. None is missed, because only the
-- owner of a lane announces, and these lanes have been taken.
WITH owned AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s AND l.lane = ANY (%(lanes)s::smallint[])
        AND EXISTS (SELECT FROM outbox.parked_key k WHERE k.lane = l.lane AND k.draining_at IS NOT NULL) FOR KEY SHARE OF l SKIP LOCKED
), announced AS MATERIALIZED (
    SELECT k.number, k.draining_to FROM owned o JOIN outbox.parked_key k ON k.lane = o.lane
    WHERE k.draining_at IS NOT NULL
), ended AS (
    UPDATE outbox.parked_key SET draining_at = NULL
    WHERE number IN (SELECT k.number FROM announced a JOIN outbox.parked_key k ON k.number = a.number
                     FOR NO KEY UPDATE OF k SKIP LOCKED)
), doubted AS (
    UPDATE outbox.waiting w SET in_doubt = true FROM announced a WHERE w.parked = a.number AND w.place <= a.draining_to
)
SELECT l.lane FROM outbox.lane l
WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s AND l.lane = ANY (%(lanes)s::smallint[])
    AND EXISTS (SELECT FROM outbox.parked_key k WHERE k.lane = l.lane AND k.draining_at IS NOT NULL)
    AND l.lane NOT IN (SELECT o.lane FROM owned o)

-- name: holds
-- The holds of lanes that were taken, each with a place in front of which nothing waits for it. Of a long key its first bytes and
-- its hash, as `kept` in records.py makes them.
SELECT k.number, k.lane, k.topic, k.partition, k.queue,
       CASE WHEN octet_length(k.order_key) > %(longest)s::integer
            THEN substr(k.order_key, 1, %(first)s::integer) || sha256(k.order_key) ELSE k.order_key END,
       (SELECT w.place FROM outbox.waiting w WHERE w.parked = k.number ORDER BY w.place LIMIT 1), k.error,
       k.partitions, k.selector
FROM outbox.parked_key k WHERE k.lane = ANY (%(lanes)s::smallint[])

-- name: widen
-- Lets the messages that wait for partitions of topics wait for the topics: former owners held them by different counts. What was
-- announced of a partition is in doubt. A row that another session holds stays as it is.
WITH narrow AS MATERIALIZED (
    SELECT k.number, k.lane, k.topic, k.head, k.error, k.since, CASE WHEN k.draining_at IS NOT NULL THEN k.draining_to END AS doubted_to
    FROM outbox.parked_key k
    WHERE k.topic = ANY (%(topics)s::text[]) AND k.partition IS NOT NULL AND k.lane IN (
        SELECT l.lane FROM outbox.lane l
        WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s AND l.lane = ANY (%(mine)s::smallint[]) FOR KEY SHARE SKIP LOCKED)
    FOR UPDATE SKIP LOCKED
), made AS (
    INSERT INTO outbox.parked_key (number, lane, topic, head, error, since)
    SELECT DISTINCT ON (n.lane, n.topic) -n.number, n.lane, n.topic, n.head, n.error, n.since FROM narrow n
    WHERE NOT EXISTS (SELECT FROM outbox.parked_key t WHERE t.lane = n.lane AND t.topic = n.topic AND t.is_topic)
    ORDER BY n.lane, n.topic, n.number
    RETURNING number, lane, topic
), whole AS (
    SELECT m.number, m.lane, m.topic FROM made m
    UNION ALL
    SELECT t.number, t.lane, t.topic FROM outbox.parked_key t
    WHERE t.is_topic AND t.topic = ANY (%(topics)s::text[]) AND t.lane = ANY (%(mine)s::smallint[])
), moved AS (
    UPDATE outbox.waiting w SET parked = o.number, in_doubt = w.in_doubt OR w.place <= coalesce(n.doubted_to, 0)
    FROM narrow n JOIN whole o ON o.lane = n.lane AND o.topic = n.topic WHERE w.parked = n.number
)
DELETE FROM outbox.parked_key WHERE number IN (SELECT n.number FROM narrow n)

-- name: waits
-- Those of some holds for which a message waits.
SELECT n.number FROM unnest(%(numbers)s::bigint[]) n (number)
CROSS JOIN LATERAL (SELECT FROM outbox.waiting w WHERE w.parked = n.number LIMIT 1) w

-- name: requested
-- The holds whose messages somebody has asked to publish, and when; those first that were asked for first.
SELECT k.number, extract(epoch FROM k.requested_at)::float8 FROM outbox.parked_key k
WHERE k.lane = ANY (%(lanes)s::smallint[]) AND k.requested_at IS NOT NULL
    AND NOT EXISTS (SELECT FROM unnest(%(without)s::bigint[]) w (number) WHERE w.number = k.number)
ORDER BY k.requested_at LIMIT %(most)s
