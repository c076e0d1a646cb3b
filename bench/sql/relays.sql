-- How the benchmark of several relays watches them.

-- name: lanes_of
-- The lanes of one process.
SELECT coalesce(array_agg(lane ORDER BY lane), '{}') FROM outbox.lane WHERE split_part(owner, ':', 2) = %(pid)s::text

-- name: recorded
-- Messages recorded from a position on, and when the last of them was.
SELECT coalesce(sum(cardinality(positions)), 0)::bigint, extract(epoch FROM max(published_at))::float8
FROM outbox.publication WHERE lo >= %(first)s

-- name: taken_over
-- When another owner first recorded messages of these lanes.
SELECT extract(epoch FROM min(p.published_at))::float8
FROM outbox.publication p
WHERE p.epoch <> %(epoch)s AND p.lanes && %(lanes)s::smallint[]
    AND extract(epoch FROM p.published_at) >= %(since)s

-- name: epoch_of
-- The epoch under which a process has its lanes.
SELECT epoch FROM outbox.lease WHERE split_part(owner, ':', 2) = %(pid)s::text

-- name: has_joined
-- Whether a process has joined, and some relay has all lanes.
SELECT EXISTS (SELECT FROM outbox.lease WHERE split_part(owner, ':', 2) = %(pid)s::text)
    AND NOT EXISTS (SELECT FROM outbox.lane WHERE owner IS NULL)

-- name: delays
-- The delay of each message that was sent between two moments, to its record, ascending, in milliseconds.
SELECT 1000 * extract(epoch FROM p.published_at - m.born_at)::float8 AS delay
FROM outbox.publication p, unnest(p.positions) AS u (position) JOIN outbox.message m ON m.position = u.position
WHERE extract(epoch FROM m.born_at) >= %(since)s AND extract(epoch FROM m.born_at) < %(until)s
ORDER BY delay

-- name: recorded_between
-- Messages recorded in each whole second from one moment on, in that order.
SELECT coalesce(sum(cardinality(p.positions)), 0)::bigint
FROM generate_series(0, %(seconds)s::int - 1) AS s (second)
    LEFT JOIN outbox.publication p ON floor(extract(epoch FROM p.published_at) - %(since)s) = s.second
GROUP BY s.second ORDER BY s.second
