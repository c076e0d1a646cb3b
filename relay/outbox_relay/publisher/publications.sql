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
