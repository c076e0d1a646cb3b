-- The console's own statements. What its pages show and do is read and done by the operations of the commands.

-- name: reading
-- For a session that only reads: nothing is written, nothing takes longer than a person waits, and the policies of consumer groups
-- choose the rows. Compiling a plan takes longer than most reads here, and worker processes are for others.
SELECT pg_catalog.set_config('default_transaction_read_only', 'on', false), pg_catalog.set_config('statement_timeout', '20s', false),
       pg_catalog.set_config('row_security', 'on', false), pg_catalog.set_config('jit', 'off', false),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', false)

-- name: acting
-- For a session that acts for an operator: the audit names them, also where a statement of the operation does not.
SELECT pg_catalog.set_config('outbox.actor', %(actor)s, false), pg_catalog.set_config('row_security', 'on', false),
       pg_catalog.set_config('statement_timeout', '60s', false)

-- name: latency
-- How long messages took from the insertion (or decision, or due time) to the record of Kafka's acknowledgement, in seconds: the median
-- and the highest of a hundred. Of the newest 200 batches of each owner, those of the last seconds; of each the message of the lowest
-- position, which waited longest or nearly. A half message's position is not its id, so it is left out.
WITH newest AS MATERIALIZED (
    SELECT o.epoch, (SELECT b.batch FROM outbox.publication b
                     WHERE b.epoch = o.epoch ORDER BY b.batch DESC LIMIT 1) AS batch
    FROM (SELECT DISTINCT l.epoch FROM outbox.lane l) o
), recent AS MATERIALIZED (
    SELECT b.lo, b.published_at
    FROM newest n CROSS JOIN LATERAL (
        SELECT p.lo, p.published_at FROM outbox.publication p WHERE p.epoch = n.epoch AND p.batch > n.batch - 200 OFFSET 0
    ) b
    WHERE b.published_at > statement_timestamp() - make_interval(secs => %(window)s)
), took AS MATERIALIZED (
    SELECT (SELECT extract(epoch FROM r.published_at - greatest(m.born_at, m.decided_at, m.deliver_at))::float8
            FROM outbox.message m WHERE m.id = r.lo) AS seconds
    FROM recent r
)
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS median, percentile_cont(0.99) WITHIN GROUP (ORDER BY seconds) AS highest
FROM took WHERE seconds IS NOT NULL

-- name: certificates
-- The newest certificates of each warehouse, the newest first.
SELECT t.target, c.verified_at, c.window_lo::text AS window_lo, c.window_hi::text AS window_hi, c.messages, c.problems
FROM (SELECT DISTINCT target FROM outbox.certificate) t
CROSS JOIN LATERAL (
    SELECT * FROM outbox.certificate n WHERE n.target = t.target ORDER BY n.xid DESC LIMIT 20
) c
ORDER BY c.verified_at DESC LIMIT 100
