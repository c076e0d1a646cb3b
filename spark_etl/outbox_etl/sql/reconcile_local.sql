-- What reconcile asks DuckDB, where PostgreSQL's rows and Kafka's records of a window are Parquet files on the driver's
-- machine: p_messages, p_publications, p_events of PostgreSQL, h_messages, h_publications, h_events of the warehouse's
-- history, places and records. Spark's comparison (against_warehouse.py, against_kafka.py, order.py) asks the same.

-- name: digest
-- 128 bits that stand for a key and a body, as kafka.digest and kafka.DIGEST have them.
substr(sha256(
    CASE WHEN key IS NULL THEN encode('~') ELSE encode(CAST(octet_length(key) AS VARCHAR) || ':') || key END
    || CASE WHEN body IS NULL THEN encode('~') ELSE encode('=') || body END), 1, 32)

-- name: messages
-- Messages without their content. A null hashes as a constant and a list as its elements: which columns are null and how
-- long the lists are is hashed too ({parts}). A row that does not agree with itself has a hash that none of PostgreSQL's has.
SELECT id, message_id, xid, topic, position, state, {unit} AS unit, digest,
       CASE WHEN {sound} THEN 1 ELSE -1 END * CAST(hash({parts}) >> 1 AS BIGINT) AS hash{more}
FROM (SELECT *, {digest} AS digest, list_sort(map_entries(headers)) AS heads FROM {rows})

-- name: messages_of_window
-- The messages of a window, and those of older ones that were published in it: their positions say which.
history WHERE ({inside}) OR (state = 'COMMITTED' AND position BETWEEN {low} AND {high})

-- name: publications
-- Batches, one row per message of theirs.
SELECT unnest(positions) AS position, unnest(partitions) AS partition, unnest(offsets) AS "offset", published_at, xid, epoch,
       batch, id AS lo
FROM batches

-- name: publications_of_window
-- What the warehouse has of the window, and which of it is of a message that a fail-over lost: at the position of one, and
-- not in PostgreSQL, though it has their range ({held}). Once it has not, the one that the lost message itself shows.
SELECT position, partition, "offset", published_at, xid, epoch, batch, CAST(NULL AS BIGINT) AS lo,
       coalesce(
           position IN (SELECT l.position FROM lost l)
           AND (({held}) OR EXISTS (
               SELECT 1 FROM lost l
               WHERE l.position = p.position AND l.partition IS NOT DISTINCT FROM p.partition
                   AND l."offset" IS NOT DISTINCT FROM p."offset" AND l.published_at IS NOT DISTINCT FROM p.published_at))
           AND NOT EXISTS (
               SELECT 1 FROM p_publications s
               WHERE s.position = p.position AND s.partition IS NOT DISTINCT FROM p.partition
                   AND s."offset" IS NOT DISTINCT FROM p."offset" AND s.published_at IS NOT DISTINCT FROM p.published_at
                   AND s.xid = p.xid),
           false) AS of_lost
FROM publications p WHERE {inside}

-- name: events
-- Events, each with a hash of its columns.
SELECT id, message_id, CAST(hash({parts}) >> 1 AS BIGINT) AS hash FROM {rows}

-- name: count
-- How many messages a window has, and the sum of their hashes.
SELECT count(*) AS count, sum(hash) AS sum FROM p_messages WHERE {inside}

-- name: span
-- The lowest and the highest value of a column.
SELECT coalesce(min({column}), 0) AS low, coalesce(max({column}), -1) AS high FROM {rows}

-- name: number
-- How many rows there are.
SELECT count(*) AS count FROM {rows}

-- name: numbers
-- How many rows there are of each value of a column.
SELECT {column}, count(*) AS count FROM {rows} GROUP BY {column}

-- name: lost
-- What a fail-over lost, with the publication that it shows.
SELECT DISTINCT position, partition, "offset", published_at FROM {rows} WHERE status = 'LOST' AND state = 'COMMITTED'

-- name: suspects
-- What may differ between PostgreSQL and the warehouse: messages by their ids, publications and the first ones by their
-- positions ({published}: all columns), events by their hashes. {low} and {high}: the ids of the window's messages in PostgreSQL.
WITH messages AS (
    SELECT id AS key, sum(mine) AS mine, count(*) AS n, min(hash) = max(hash) AS same, bool_or(inside) AS inside,
           bool_or(bad) AS bad
    FROM (
        SELECT id, hash, 1 AS mine, {inside} AS inside, false AS bad FROM p_messages WHERE xid < {hi}
        UNION ALL
        SELECT id, hash, 0, {inside}, status = 'LOST' FROM h_messages WHERE xid < {hi}
        UNION ALL
        -- (a message's former state beside the new one, whatever its transaction)
        SELECT id, 0, 0, true, true FROM history
        WHERE id BETWEEN {low} AND {high} AND NOT ({inside}) AND id IN (SELECT p.id FROM p_messages p WHERE {inside})
    )
    GROUP BY id
), firsts AS (
    SELECT position AS key, sum(mine) AS mine, count(*) AS n, bool_or(shown) AS shown, count("offset") AS offsets,
           min(published_at) IS NOT DISTINCT FROM max(published_at)
           AND min(partition) IS NOT DISTINCT FROM max(partition)
           AND min("offset") IS NOT DISTINCT FROM max("offset")
           AND count(published_at) = 2 AND count(partition) IN (0, 2) AND count("offset") IN (0, 2) AS same
    FROM (
        SELECT position, published_at, partition, "offset", 1 AS mine, status = 'PUBLISHED' AS shown
        FROM h_messages WHERE state = 'COMMITTED' AND status <> 'LOST'
        UNION ALL
        SELECT position, published_at, partition, "offset", 0, false FROM h_publications WHERE NOT of_lost
    )
    GROUP BY position
)
SELECT CASE WHEN inside THEN 'messages' ELSE 'others' END AS what, key FROM messages
WHERE mine <> 1 OR n <> 2 OR NOT same OR bad
UNION ALL
SELECT 'publications', position FROM (
    SELECT {published}, 1 AS mine FROM p_publications
    UNION ALL
    SELECT {published}, -1 FROM h_publications
)
GROUP BY {published} HAVING sum(mine) <> 0
UNION ALL
SELECT 'firsts', key FROM firsts
WHERE mine > 0 AND NOT (mine = 1 AND n = 2 AND same AND shown) AND NOT (n = mine AND offsets = 0)
UNION ALL
SELECT 'events', hash FROM (SELECT hash, 1 AS mine FROM p_events UNION ALL SELECT hash, -1 FROM h_events)
GROUP BY hash HAVING sum(mine) <> 0

-- name: unverified
-- Rows of the warehouse that were dropped from PostgreSQL before they were verified.
SELECT (SELECT count(*) FROM h_messages WHERE {messages}) + (SELECT count(*) FROM h_publications WHERE {publications}) AS count

-- name: places
-- Every place of the window's publications by one source's account.
SELECT '{side}' AS side, m.message_id, m.topic, p.partition, p."offset", m.digest, m.position, m.unit, m.xid AS sent
FROM {side}_publications p JOIN {side}_messages m ON m.position = p.position
WHERE m.state = 'COMMITTED'{also}

-- name: bounds
-- The lowest and highest offset of the window's places in each partition.
SELECT topic, partition, min("offset") AS low, max("offset") AS high FROM places GROUP BY topic, partition

-- name: judged
-- The places, with whether Kafka no longer keeps them.
SELECT p.*, p."offset" IS NULL OR coalesce(l.compacted OR p."offset" < l.low, false) AS gone,
       hash(p.message_id) AS key,
       CASE WHEN p.message_id IS NOT NULL THEN hash(p.message_id, p.topic, p.partition, p."offset", p.digest) END AS hash
FROM places p LEFT JOIN limits l ON l.topic = p.topic AND l.partition = p.partition

-- name: hashed
-- The records in the same way.
SELECT *, hash(message_id) AS key,
       CASE WHEN message_id IS NOT NULL THEN hash(message_id, topic, partition, "offset", digest) END AS hash
FROM records

-- name: kafka_suspects
-- What may be wrong, as hashes of message ids: all but the messages that are there once, at their one place ({whole}), and
-- those of which Kafka no longer keeps a place.
SELECT key, n > read AS known FROM (
    SELECT key, sum(read) AS read, count(*) AS n, count(CASE WHEN gone THEN 1 END) AS gone, min(hash) = max(hash) AS same,
           min("offset") = max("offset") AS near
    FROM (
        SELECT key, hash, "offset", 0 AS read, gone FROM judged
        UNION ALL
        SELECT key, hash, "offset", 1, false FROM hashed WHERE message_id IS NOT NULL
    )
    GROUP BY key
)
WHERE NOT (read = 0 AND n = gone) AND NOT coalesce(read = 1 AND n {whole} AND gone = 0 AND same AND near, false)

-- name: suspected_messages
-- Their message ids.
SELECT DISTINCT m.message_id, s.known
FROM (SELECT key, message_id FROM judged UNION ALL SELECT key, message_id FROM hashed WHERE message_id IS NOT NULL) m
JOIN kafka_suspects s ON s.key = m.key

-- name: totals
-- Counts and sums of the three, per topic and partition, over places that Kafka still has.
SELECT topic, partition,
       count(CASE WHEN postgres IS NOT NULL AND here THEN 1 END) AS postgres,
       count(CASE WHEN warehouse IS NOT NULL AND here THEN 1 END) AS warehouse,
       count(CASE WHEN kafka IS NOT NULL AND here THEN 1 END) AS kafka,
       sum(CASE WHEN here THEN postgres END) AS postgres_sum,
       sum(CASE WHEN here THEN warehouse END) AS warehouse_sum,
       sum(CASE WHEN here THEN kafka END) AS kafka_sum,
       count(CASE WHEN expected AND gone AND kafka IS NULL THEN 1 END) AS no_longer_in_kafka,
       count(CASE WHEN is_foreign THEN 1 END) AS "foreign",
       count(CASE WHEN kafka IS NOT NULL AND NOT is_foreign AND NOT expected THEN 1 END) AS others
FROM (
    SELECT *, postgres IS NOT NULL OR warehouse IS NOT NULL AS expected, expected AND NOT (gone AND kafka IS NULL) AS here
    FROM (
        SELECT topic, partition, max(CASE WHEN side = 'p' THEN hash END) AS postgres,
               max(CASE WHEN side = '{warehouse}' THEN hash END) AS warehouse, max(CASE WHEN side = 'k' THEN hash END) AS kafka,
               bool_or(gone) AS gone, bool_or(side = 'k' AND message_id IS NULL) AS is_foreign
        FROM (
            SELECT side, gone, topic, partition, "offset", message_id, hash FROM judged
            UNION ALL
            SELECT 'k', false, topic, partition, "offset", message_id, hash FROM hashed
        )
        GROUP BY topic, partition, "offset"
    )
)
GROUP BY topic, partition

-- name: units
-- The hashes of the units in which a message may lie behind a later one: by the places, and those of suspects, which may be
-- in Kafka elsewhere or more than once.
SELECT DISTINCT unit FROM (
    SELECT unit, position, max(position) OVER (
               PARTITION BY unit, partition ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
    FROM (SELECT hash(topic, unit) AS unit, partition, "offset", position FROM judged WHERE unit IS NOT NULL AND NOT gone)
)
WHERE highest > position
UNION
SELECT hash(topic, unit) FROM judged
WHERE unit IS NOT NULL AND message_id IS NOT NULL AND key IN (SELECT s.key FROM kafka_suspects s)

-- name: inversions
-- Messages of these units that lie behind a later one of their unit in the same partition, by their first records. If there
-- is a later one of the same transaction, it is that.
WITH known AS (
    SELECT DISTINCT message_id, topic, position, unit, sent FROM judged
    WHERE unit IS NOT NULL AND hash(topic, unit) IN (SELECT u.unit FROM units u)
), firsts AS (
    SELECT topic, partition, message_id, min("offset") AS "offset", count(*) AS times FROM records
    WHERE message_id IN (SELECT k.message_id FROM known k)
    GROUP BY topic, partition, message_id
), behind AS (
    SELECT r.*, k.position, k.unit, k.sent,
           {'position': k.position, 'message_id': r.message_id, 'offset': r."offset", 'times': r.times} AS itself
    FROM firsts r JOIN known k ON k.message_id = r.message_id AND k.topic = r.topic
), latest AS (
    SELECT *,
           max(itself) OVER (PARTITION BY topic, partition, unit ORDER BY "offset"
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS of_all,
           max(itself) OVER (PARTITION BY topic, partition, unit, sent ORDER BY "offset"
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS of_its_own
    FROM behind
)
SELECT message_id, topic, partition, "offset", times, position,
       CASE WHEN of_its_own.position > position THEN of_its_own ELSE of_all END AS later
FROM latest
WHERE CASE WHEN of_its_own.position > position THEN of_its_own ELSE of_all END.position > position

-- name: recorded
-- The publications at some positions, the first of each first, with the transaction of their message.
SELECT p.position, p.partition, p."offset", p.epoch, p.batch, p.lo, m.xid
FROM p_publications p JOIN p_messages m ON m.position = p.position
WHERE m.state = 'COMMITTED' AND p.position IN (SELECT a.position FROM asked a)
ORDER BY p.position, p.published_at NULLS FIRST, p."offset" NULLS FIRST
