-- Parked keys, and the messages that wait behind their heads. What is published of them is recorded in publications.sql.

-- name: end_drains
-- Drains that were announced and not recorded: their messages may be in Kafka. The requests stay, so they go on. Where
-- another session holds the key's row, the announcement stays, too, until the drain is recorded. Only rows of lanes with an
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

-- name: keys
-- The parked keys of lanes that were taken, each with the lowest place of what waits for it. Of a long key its first bytes
-- and its hash, as `kept` in kept_keys.py makes them.
SELECT k.number, k.lane, k.topic, k.queue,
       CASE WHEN octet_length(k.order_key) > %(longest)s::integer
            THEN substr(k.order_key, 1, %(first)s::integer) || sha256(k.order_key) ELSE k.order_key END,
       CASE WHEN NOT k.is_topic
            THEN (SELECT w.place FROM outbox.waiting w WHERE w.parked = k.number ORDER BY w.place LIMIT 1) END
FROM outbox.parked_key k WHERE k.lane = ANY (%(lanes)s::smallint[])

-- name: held
-- How many messages wait in lanes that were taken, by topic; those that fail included, those of topics that are parked not:
-- there is no limit for them, and they may be millions.
SELECT k.lane, k.topic, sum(h.messages)::bigint
FROM outbox.parked_key k CROSS JOIN LATERAL (
    SELECT count(*) AS messages FROM outbox.waiting w WHERE w.parked = k.number
) h
WHERE k.lane = ANY (%(lanes)s::smallint[]) AND NOT k.is_topic GROUP BY k.lane, k.topic

-- name: requested
-- The key whose drain was requested first, and how many seconds ago. One that is locked (a message of it is being given up)
-- is left for later, and so is one whose topic is parked, unless the topic is open, and full: it waits for its keys. Those that the relay cannot drain now are left out: else the
-- oldest of them would be the answer each time, and keep all others waiting.
SELECT number, lane, topic, queue,
       CASE WHEN octet_length(order_key) > %(longest)s::integer
            THEN substr(order_key, 1, %(first)s::integer) || sha256(order_key) ELSE order_key END,
       extract(epoch FROM clock_timestamp() - requested_at)::float8
FROM outbox.parked_key
WHERE lane = ANY (%(lanes)s::smallint[]) AND requested_at IS NOT NULL
    AND number <> ALL (%(without)s::bigint[])
    AND (is_topic OR topic = ANY (%(full)s::text[]) OR NOT EXISTS (SELECT FROM outbox.parked_key t
                                 WHERE t.lane = parked_key.lane AND t.topic = parked_key.topic AND t.is_topic))
ORDER BY requested_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED

-- name: announce
-- The messages of a key that are published next, in their order; announced, so that none of them can be given up while it
-- may be on its way to Kafka. A flushed commit under our epoch, and so the barrier of what is read. One statement: nothing
-- that joins the key later is among them, so a relay that takes the lane meanwhile finds all of them in doubt. One that was
-- given up as this began is not COMMITTED when its row is read. From the place of the first that may wait: what was deleted
-- in front of it stays in the index while somebody holds a snapshot. No number: somebody holds the key's row, or the lane is
-- not ours.
WITH owned AS MATERIALIZED (
    SELECT lane FROM outbox.lane
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = %(lane)s FOR KEY SHARE SKIP LOCKED
), listed AS MATERIALIZED (
    SELECT w.id, w.place FROM outbox.waiting w
    WHERE w.parked = %(number)s AND w.place >= %(since)s ORDER BY w.place LIMIT %(most)s
), announced AS (
    UPDATE outbox.parked_key
    SET draining_at = clock_timestamp(), tries = tries + %(is_first)s::boolean::integer,
        draining_to = (SELECT max(l.place) FROM listed l)
    WHERE number = (SELECT k.number FROM owned, outbox.parked_key k WHERE k.number = %(number)s
                    FOR NO KEY UPDATE OF k SKIP LOCKED)
    RETURNING number
)
SELECT number, ARRAY(SELECT l.id FROM listed l ORDER BY l.place), (SELECT max(l.place) FROM listed l) FROM announced

-- name: withdraw
-- Nothing of these lanes is on the wire, and all that was published is recorded. Where another session holds the key's row,
-- the announcement stays.
WITH owned AS MATERIALIZED (
    SELECT lane FROM outbox.lane
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(lanes)s::smallint[]) FOR KEY SHARE SKIP LOCKED
)
UPDATE outbox.parked_key SET draining_at = NULL
WHERE number IN (SELECT k.number FROM owned o JOIN outbox.parked_key k ON k.lane = o.lane
                 WHERE k.draining_at IS NOT NULL FOR NO KEY UPDATE OF k SKIP LOCKED)
