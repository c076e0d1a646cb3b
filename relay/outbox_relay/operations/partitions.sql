-- Looking at partitions and making them.

-- name: list
-- Every partition with its bounds, rows (estimated from statistics) and bytes of its three tables with indexes.
SELECT p.name::text, p.lower, p.upper,
       pg_stat_get_live_tuples(p.name) AS rows,
       (SELECT coalesce(sum(pg_total_relation_size(to_regclass(format('outbox.%I', t || '_p' || p.suffix)))), 0)
        FROM unnest(ARRAY['message', 'publication', 'event']) t)::bigint AS bytes
FROM outbox.partition p
ORDER BY p.lower

-- name: pace
-- The newest id given out, and ids per second: over the last 10,000, 100,000 … ids, whichever first reach back ten
-- minutes, so that one bulk insert is not taken for the pace of the day (NULL: no message yet).
SELECT s.last_value,
       (SELECT (s.last_value - m.id) / greatest(m.elapsed, 600)::float8
        FROM unnest(ARRAY[10000, 100000, 1000000, 10000000]) span
        CROSS JOIN LATERAL (
            SELECT o.id, extract(epoch FROM clock_timestamp() - o.born_at) AS elapsed
            FROM outbox.message o WHERE o.id BETWEEN s.last_value - span AND s.last_value
            ORDER BY o.id LIMIT 1
        ) m
        ORDER BY m.elapsed >= 600 DESC, CASE WHEN m.elapsed >= 600 THEN span ELSE -span END LIMIT 1)
FROM outbox.position s

-- name: has_default
-- Whether somebody has added a DEFAULT partition, which forbids DETACH … CONCURRENTLY.
SELECT EXISTS (SELECT FROM pg_partitioned_table t
               WHERE t.partrelid = 'outbox.message'::regclass AND t.partdefid <> 0)

-- name: ensure
-- Make partitions for the coming days; the number that were added.
SELECT outbox.ensure_partitions(%(days)s)
