-- The tables of each range of ids, in whatever state a removal has brought them to.

-- name: tables
-- Every table of a partition, attached or not, oldest first: its kind, the name's suffix, how it belongs to its
-- parent, its bounds while it belongs to it, its mark and its bytes with indexes.
SELECT split_part(c.relname, '_p', 1) AS kind,
       split_part(c.relname, '_p', 2) AS suffix,
       CASE WHEN i.inhrelid IS NULL THEN 'detached' WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END AS state,
       (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''(\d+)''\)'))[1]::bigint AS upper,
       obj_description(c.oid, 'pg_class') AS mark,
       coalesce(pg_total_relation_size(c.oid), 0) AS bytes
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
    AND c.relname ~ '^(message|publication|event)_p[0-9]{15}$'
ORDER BY 2, 1

-- name: state
-- How one table belongs to its parent; no row: there is no such table.
SELECT CASE WHEN i.inhrelid IS NULL THEN 'detached' WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.oid = to_regclass(%(table)s)
