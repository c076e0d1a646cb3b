-- Partitions, made ahead.

-- name: ensure
-- Make partitions for the coming days; the number made.
SELECT outbox.ensure_partitions()

-- name: ahead
-- How many partitions lie wholly beyond the newest position.
SELECT count(*) FROM outbox.partition p WHERE p.lower > (SELECT last_value FROM outbox.position)
