-- How the benchmarks watch the relay, at next to no cost for the database.

-- name: owned
-- A row as soon as a relay owns the lanes.
SELECT owner FROM outbox.lane WHERE owner IS NOT NULL LIMIT 1

-- name: joined
-- The relays that have joined, the owners of lanes, and the lanes that have one.
SELECT (SELECT count(*) FROM outbox.lease), count(DISTINCT epoch), count(*) FROM outbox.lane WHERE owner IS NOT NULL

-- name: records_behind
-- The records behind one, each with how many messages it has. By the primary key, however many there are.
SELECT epoch, batch, lo, cardinality(positions) FROM outbox.publication
WHERE (epoch, batch, lo) > (%(epoch)s, %(batch)s, %(lo)s) ORDER BY epoch, batch, lo

-- name: newest
-- The newest position given out; 0 before the first.
SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM outbox.position

-- name: drained
-- Batches and messages recorded from a position on, the messages of the first batch, and the seconds from the first
-- record to the last and from a moment to the last.
SELECT count(*), sum(cardinality(positions))::bigint,
       (array_agg(cardinality(positions) ORDER BY published_at))[1],
       extract(epoch FROM max(published_at) - min(published_at))::float8,
       extract(epoch FROM max(published_at))::float8 - %(since)s
FROM outbox.publication WHERE lo >= %(first)s

-- name: recorded
-- A row as soon as one position is recorded.
SELECT epoch FROM outbox.publication
WHERE int8range(lo, hi, '[]') @> %(position)s::bigint AND positions @> ARRAY[%(position)s::bigint]
