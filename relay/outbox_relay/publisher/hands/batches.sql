-- What is delivered exactly once: the intents of batches, and what the offset in Kafka makes of them.

-- name: identity
-- This server and database: two environments that use one Kafka have transactional ids of their own.
SELECT c.system_identifier, d.oid::bigint FROM pg_control_system() c, pg_database d WHERE d.datname = current_database()

-- name: known
-- The shards that have some of these lanes, and under what names their batches are known to Kafka.
SELECT x.shard, x.name FROM outbox.exactly_once x WHERE x.lanes && %(lanes)s::smallint[] AND NOT x.is_over
ORDER BY x.shard

-- name: intents
-- The batches of a shard that Kafka may have.
SELECT i.batch, i.digest FROM outbox.intent i WHERE i.shard = %(shard)s ORDER BY i.batch

-- name: begin
-- A shard is delivered exactly once from now on. Its batch 0 has no message.
WITH begun AS (
    INSERT INTO outbox.exactly_once (shard, name, lanes) VALUES (%(shard)s, %(name)s, %(lanes)s::smallint[])
    ON CONFLICT (shard) DO UPDATE SET name = excluded.name, lanes = excluded.lanes, is_over = false, not_proven_since = NULL
)
INSERT INTO outbox.intent (shard, batch, digest, ids, positions, partitions)
VALUES (%(shard)s, 0, %(digest)s, '{}', '{}', '{}')

-- name: forget
-- A shard is not delivered exactly once any more, or under another name. Its row stays: Kafka has records that were aborted.
WITH ended AS (
    DELETE FROM outbox.intent WHERE shard = %(shard)s
)
UPDATE outbox.exactly_once SET is_over = true WHERE shard = %(shard)s

-- name: proven
-- Relays of two other shards, which have parts of its lanes, may prove it at the same time. No row: another one has.
UPDATE outbox.exactly_once SET not_proven_since = NULL WHERE shard = %(shard)s AND NOT is_over RETURNING shard

-- name: not_proven
-- For operators; the relay that cannot prove the shard ends.
UPDATE outbox.exactly_once SET not_proven_since = coalesce(not_proven_since, clock_timestamp()) WHERE shard = %(shard)s

-- name: intend_last
-- The batch with which a group ends that is left.
INSERT INTO outbox.intent (shard, batch, digest, ids, positions, partitions)
VALUES (%(shard)s, %(number)s, %(digest)s, '{}', '{}', '{}')
ON CONFLICT (batch, shard) DO UPDATE SET digest = excluded.digest

-- name: unrecorded
-- The messages of batches that Kafka has, and that have no publication. Those that are gone had one: it was dropped with them.
SELECT r.id, r.position, r.partition
FROM outbox.intent i CROSS JOIN LATERAL unnest(i.ids, i.positions, i.partitions) r (id, position, partition)
WHERE i.shard = %(shard)s AND i.batch <= %(batch)s AND EXISTS (SELECT FROM outbox.message m WHERE m.id = r.id)
    AND NOT EXISTS (SELECT FROM outbox.publication b
                    WHERE int8range(b.lo, b.hi, '[]') @> r.position AND b.lo <= r.position AND b.hi >= r.position
                        AND b.positions @> ARRAY[r.position])
ORDER BY r.position

-- name: end_intents
-- All other batches of a shard are recorded, or certainly not in Kafka.
DELETE FROM outbox.intent WHERE shard = %(shard)s AND batch <> %(batch)s

-- name: end_announcements
-- Nothing that was announced is in doubt: it is published, or not in Kafka. What another session holds stays, and is in doubt then.
UPDATE outbox.parked_key SET draining_at = NULL
WHERE number IN (SELECT k.number FROM outbox.parked_key k
                 WHERE k.lane = ANY (%(lanes)s::smallint[]) AND k.draining_at IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED)

-- name: intend
-- A batch that may be sent once this is flushed, instead of one that had its number and is certainly not in Kafka; and batches whose
-- intents are of no more use. No row: another relay has the lanes, or a session holds the first one's row. Whoever takes the lanes
-- locks the rows of all of them, so one is enough.
WITH mine AS MATERIALIZED (
    SELECT l.lane FROM outbox.lane l
    WHERE l.lane = %(first)s AND l.epoch = %(epoch)s AND l.owner = %(owner)s FOR KEY SHARE SKIP LOCKED
), ended AS (
    DELETE FROM outbox.intent
    WHERE shard = %(shard)s AND batch = ANY (%(ended)s::bigint[]) AND EXISTS (SELECT FROM mine)
)
INSERT INTO outbox.intent (shard, batch, digest, ids, positions, partitions)
SELECT %(shard)s, %(number)s, %(digest)s, %(ids)s::bigint[], %(positions)s::bigint[], %(partitions)s::integer[] FROM mine
ON CONFLICT (batch, shard) DO UPDATE
SET digest = excluded.digest, ids = excluded.ids, positions = excluded.positions, partitions = excluded.partitions

-- name: was_exactly_once
-- Whether Kafka may have records of these lanes that were aborted. What another server sent, this one need not know.
SELECT EXISTS (SELECT FROM outbox.exactly_once x WHERE x.lanes && %(lanes)s::smallint[]) OR EXISTS (SELECT FROM outbox.failover)
