-- Recording what is published. Every statement here is one flushed commit, and so also the barrier of the batch
-- that was read before it.

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

-- name: has_synchronous_standbys
-- Whether commits wait for standbys: without names, or without senders, they return at once. When this session read its
-- settings, and whether that is so long ago that the checkpointer has read them, too: it is what lets commits wait.
SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('max_wal_senders') <> '0',
       pg_conf_load_time(), clock_timestamp() - pg_conf_load_time() > make_interval(secs => %(settled)s)

-- name: record_claims
-- The same with messages that fail, or are held behind one that does, in one statement. The rows of the claims' lanes are
-- locked, not only read: a relay that takes a lane has locked its row before it reads which keys are parked, so a claim is written
-- before that, or never. FOR KEY SHARE lets all others write these rows. No row: also where another session holds one of them. One that has expired since it was published makes no claim: where
-- a relay died before a lane's row said that it goes on, its successor reads what has a publication again.
-- Does such a one wait for its topic, its row stays as it is: the drain of the topic finds that it has expired.
-- A message that waits for its whole topic already is taken over by its own key: the drain of the topic has found that it
-- fails, or is to be held.
-- A claim of a key that has no row, and gets none here, is an error (outbox.refuse_claim): no drain would ever find it.
WITH owned AS MATERIALIZED (
    SELECT lane FROM outbox.lane
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(locked)s::smallint[]) FOR KEY SHARE SKIP LOCKED
), own AS MATERIALIZED (
    SELECT 1 AS yes FROM owned HAVING count(*) = cardinality(%(locked)s::smallint[])
        AND (SELECT count(*) FROM outbox.lane
             WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[])) = cardinality(%(mine)s::smallint[])
), keys AS (
    INSERT INTO outbox.parked_key (number, lane, topic, queue, order_key, head, error)
    SELECT k.number, k.lane, k.topic, k.queue, k.order_key, k.head, k.error
    FROM own, unnest(%(head_numbers)s::bigint[], %(heads)s::bigint[], %(head_lanes)s::smallint[], %(topics)s::text[],
                     %(queues)s::integer[], %(order_keys)s::bytea[], %(errors)s::text[])
                  k (number, head, lane, topic, queue, order_key, error)
), unknown AS MATERIALIZED (
    SELECT outbox.refuse_claim(n.number)
    FROM own, (SELECT DISTINCT number FROM unnest(%(numbers)s::bigint[]) number) n
    WHERE n.number IS NOT NULL AND n.number <> ALL (%(head_numbers)s::bigint[])
        AND NOT EXISTS (SELECT FROM outbox.parked_key k WHERE k.number = n.number)
), claimed AS (
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place, in_doubt)
    SELECT c.id, c.message_id, c.reason, c.parked, CASE WHEN c.parked IS NOT NULL THEN c.place END, c.in_doubt
    FROM own, unnest(%(ids)s::bigint[], %(message_ids)s::uuid[], %(reasons)s::text[], %(numbers)s::bigint[],
                     %(places)s::bigint[], %(doubtful)s::boolean[]) c (id, message_id, reason, parked, place, in_doubt)
    WHERE NOT EXISTS (SELECT FROM unknown) AND (c.reason <> 'expired' OR NOT c.in_doubt
        OR NOT EXISTS (SELECT FROM outbox.publication b
                       WHERE int8range(b.lo, b.hi, '[]') @> c.place AND b.lo <= c.place AND b.hi >= c.place
                           AND b.positions @> ARRAY[c.place]))
    ON CONFLICT (id) DO UPDATE
    SET reason = excluded.reason, parked = excluded.parked, place = excluded.place,
        in_doubt = waiting.in_doubt OR excluded.in_doubt
    WHERE waiting.parked < 0
)
INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, base, snapshot, after, is_partial, positions, partitions,
    offsets)
SELECT %(epoch)s, %(batch)s, %(lo)s, %(hi)s, %(lanes)s::smallint[], %(base)s::pg_snapshot,
       %(snapshot)s::pg_snapshot, %(after)s, %(is_partial)s, %(positions)s::bigint[], %(partitions)s::integer[],
       %(offsets)s::bigint[]
FROM own

-- name: claim
-- The same for batches without a message to record: nothing speaks for their progress. A successor reads their rows again,
-- and finds them waiting, or of a parked key.
WITH owned AS MATERIALIZED (
    SELECT lane FROM outbox.lane
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[]) FOR KEY SHARE SKIP LOCKED
), own AS MATERIALIZED (
    SELECT 1 AS yes FROM owned HAVING count(*) = cardinality(%(mine)s::smallint[])
), keys AS (
    INSERT INTO outbox.parked_key (number, lane, topic, queue, order_key, head, error)
    SELECT k.number, k.lane, k.topic, k.queue, k.order_key, k.head, k.error
    FROM own, unnest(%(head_numbers)s::bigint[], %(heads)s::bigint[], %(head_lanes)s::smallint[], %(topics)s::text[],
                     %(queues)s::integer[], %(order_keys)s::bytea[], %(errors)s::text[])
                  k (number, head, lane, topic, queue, order_key, error)
), unknown AS MATERIALIZED (
    SELECT outbox.refuse_claim(n.number)
    FROM own, (SELECT DISTINCT number FROM unnest(%(numbers)s::bigint[]) number) n
    WHERE n.number IS NOT NULL AND n.number <> ALL (%(head_numbers)s::bigint[])
        AND NOT EXISTS (SELECT FROM outbox.parked_key k WHERE k.number = n.number)
), claimed AS (
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place, in_doubt)
    SELECT c.id, c.message_id, c.reason, c.parked, CASE WHEN c.parked IS NOT NULL THEN c.place END, c.in_doubt
    FROM own, unnest(%(ids)s::bigint[], %(message_ids)s::uuid[], %(reasons)s::text[], %(numbers)s::bigint[],
                     %(places)s::bigint[], %(doubtful)s::boolean[]) c (id, message_id, reason, parked, place, in_doubt)
    WHERE NOT EXISTS (SELECT FROM unknown) AND (c.reason <> 'expired' OR NOT c.in_doubt
        OR NOT EXISTS (SELECT FROM outbox.publication b
                       WHERE int8range(b.lo, b.hi, '[]') @> c.place AND b.lo <= c.place AND b.hi >= c.place
                           AND b.positions @> ARRAY[c.place]))
    ON CONFLICT (id) DO UPDATE
    SET reason = excluded.reason, parked = excluded.parked, place = excluded.place,
        in_doubt = waiting.in_doubt OR excluded.in_doubt
    WHERE waiting.parked < 0
)
SELECT yes FROM own

-- name: drained
-- What became of a drain, in the transaction that records its publications: these messages were published, or are not to be
-- published any more, and wait no longer; those that have expired leave the key and wait for ever. By their ids: a message that is committed late may be held with a lower place.
-- Where a message failed, it is the key's new head, and the request is done; else the key is parked no more once it is
-- empty; the first message of a topic that stays parked goes on waiting as before. What was in doubt stays so: the announcement of an earlier drain is all that is known of it in a lane that is
-- stopped. False: another session holds the key's row, which stays as it is, with its request. No row: the lease is lost, or
-- another session holds the lane's row.
WITH owned AS MATERIALIZED (
    SELECT lane FROM outbox.lane
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND lane = ANY (%(mine)s::smallint[]) FOR KEY SHARE SKIP LOCKED
), published AS (
    DELETE FROM outbox.waiting w USING owned WHERE w.id = ANY (%(done)s::bigint[])
), expired AS (
    UPDATE outbox.waiting w SET reason = 'expired', parked = NULL, place = NULL
    FROM owned WHERE w.id = ANY (%(expired)s::bigint[])
), free AS MATERIALIZED (
    SELECT k.number FROM outbox.parked_key k WHERE k.number = %(number)s FOR UPDATE SKIP LOCKED
), ended AS (
    DELETE FROM outbox.parked_key k USING owned, free f WHERE k.number = f.number AND %(is_whole)s
), failed AS (
    UPDATE outbox.parked_key k
    SET head = %(head)s, error = %(error)s, draining_at = NULL, requested_at = NULL, requested_by = NULL
    FROM owned, free f WHERE k.number = f.number AND %(head)s::bigint IS NOT NULL
), marked AS (
    UPDATE outbox.waiting w SET reason = CASE WHEN %(number)s::bigint < 0 THEN w.reason ELSE 'failed' END,
        in_doubt = w.in_doubt OR %(in_doubt)s
    FROM owned WHERE w.id = %(head)s
)
SELECT EXISTS (SELECT FROM free) OR NOT EXISTS (SELECT FROM outbox.parked_key k WHERE k.number = %(number)s) FROM owned
