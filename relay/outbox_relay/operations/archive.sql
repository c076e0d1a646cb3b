-- Where one message is kept, and what is proven of the warehouses that should hold it.

-- name: partition
-- The partition of the history that holds an id.
SELECT p.name::text AS name, p.lower, p.upper FROM outbox.partition p WHERE p.lower <= %(id)s AND p.upper > %(id)s

-- name: certificates
-- The newest certificate of each warehouse whose window has a transaction.
SELECT t.target, c.verified_at, c.window_lo::text::bigint AS window_lo, c.window_hi::text::bigint AS window_hi, c.problems
FROM (SELECT DISTINCT target FROM outbox.certificate) t
CROSS JOIN LATERAL (
    SELECT * FROM outbox.certificate n
    WHERE n.target = t.target AND n.window_lo <= %(xid)s::text::xid8 AND n.window_hi > %(xid)s::text::xid8
    ORDER BY n.xid DESC LIMIT 1
) c
ORDER BY t.target
