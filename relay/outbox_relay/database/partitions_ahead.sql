-- Partitions, made ahead of need by whichever service runs.

-- name: ensure
-- Make partitions for the coming days; the number made.
SELECT outbox.ensure_partitions()

-- name: ahead
-- How many partitions lie wholly beyond the newest position, how many positions still have a partition, and how many ids of the
-- current partition were taken without a message, if nine of ten were.
SELECT count(*) FILTER (WHERE p.lower > s.last_value), coalesce(max(p.upper), 1) - 1 - s.last_value,
       coalesce((SELECT t.ids - t.rows
                 FROM (SELECT s.last_value - c.lower AS ids, outbox.rows_about(c.name) AS rows FROM outbox.partition c
                       WHERE c.lower <= s.last_value AND c.upper > s.last_value) t
                 WHERE t.ids >= 5000000 AND t.rows < t.ids / 10), 0)
FROM outbox.position s LEFT JOIN outbox.partition p ON true
GROUP BY s.last_value
