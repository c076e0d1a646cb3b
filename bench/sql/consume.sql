-- What the benchmark of consumers writes and reads.

-- name: table
-- The business table: one row for each message that was applied.
CREATE TABLE applied (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, key bytea, body bytea, at timestamptz NOT NULL DEFAULT clock_timestamp()
)

-- name: apply
-- The effect of one message, in all variants.
INSERT INTO applied (key, body) VALUES (%(key)s, %(body)s)

-- name: count
-- How many messages are applied.
SELECT count(*) FROM applied

-- name: rate
-- Messages per second from the one after the warm-up to the last one; of keys that never fail, if that is asked for.
SELECT (count(*) - 1) / extract(epoch FROM max(a.at) - min(a.at))::float8
FROM (SELECT at, key FROM applied ORDER BY n OFFSET %(warm_up)s) a
WHERE NOT %(healthy)s OR right(convert_from(a.key, 'UTF8'), 1) <> '7'
