-- Partitions, made ahead of need by whichever service runs.

-- name: ensure
-- Make partitions for the coming days; the number made.
SELECT outbox.ensure_partitions()

-- name: ahead
-- How many partitions lie wholly beyond the newest position, and how many positions still have a partition.
SELECT count(*) FILTER (WHERE p.lower > s.last_value), coalesce(max(p.upper), 1) - 1 - s.last_value
FROM outbox.position s LEFT JOIN outbox.partition p ON true
GROUP BY s.last_value
