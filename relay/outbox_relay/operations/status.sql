-- What `outbox status` asks. All statements of one look run in one REPEATABLE READ transaction: floors and
-- messages are of the same moment. How far lanes are published is read by "floors" of publisher/lanes.sql.

-- name: settings
-- For this transaction: compiling a plan takes a second, and worker processes are for others.
SELECT set_config('jit', 'off', true), set_config('max_parallel_workers_per_gather', '0', true)

-- name: prefer_indexes
-- For this transaction: no plan that walks whole tables because statistics are young.
SELECT set_config('enable_seqscan', 'off', true)

-- name: prefer_bitmaps
-- For this transaction: a window of ids is not walked by the primary key, row by row, where the block ranges of a look-up
-- leave few of its pages: PostgreSQL takes the ranges of a bloom filter for less selective than they are.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_indexscan', 'off', true)

-- name: lanes
-- Who owns each lane, for how many more seconds, and whether a relay of a version before holds has stopped it.
SELECT l.lane, l.mode, l.owner, l.epoch,
       extract(epoch FROM e.leased_until - clock_timestamp())::float8 AS lease,
       l.stopped_error IS NOT NULL AS is_stopped
FROM outbox.lane l LEFT JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner ORDER BY l.lane

-- name: grown
-- Topics that have more partitions in Kafka than keys are hashed over.
SELECT name, partitions, partitions_in_kafka FROM outbox.topic WHERE partitions_in_kafka > partitions ORDER BY name

-- name: not_proven
-- Shards that are delivered exactly once, and stand still; and for how many seconds.
SELECT x.shard, extract(epoch FROM clock_timestamp() - x.not_proven_since)::float8 AS age
FROM outbox.exactly_once x WHERE x.not_proven_since IS NOT NULL AND NOT x.is_over ORDER BY x.shard

-- name: relay_runs
-- Whether a relay holds a lane at this moment.
SELECT EXISTS (
    SELECT FROM outbox.lane l JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner
    WHERE e.leased_until > clock_timestamp()
)

-- name: before_floor
-- The newest batch of the lanes' epoch with no message beyond their floor: the batches of an epoch are written one after the other, and
-- each after its messages. No row: the floor is older than the epoch.
SELECT b.batch FROM outbox.publication b
WHERE b.epoch = %(epoch)s AND b.xid < %(xmin)s::xid8 AND %(partial)s
ORDER BY b.batch DESC LIMIT 1

-- name: backlog
-- What is committed and not recorded as published: the difference between now and the floor of these lanes,
-- which two index scans find however much has been published. Where some of it has a publication ("partial"), that is of a later batch
-- than "before", or, without one, any: until a relay that took over has moved the floor. Messages that wait are left out and those whose
-- time has not come are counted apart. The age is that of the commit, as near as it is known: when the
-- message was inserted or decided, or fell due. With "most" so many are read at most, of each partition those of the
-- oldest transactions first, as the index has them.
SELECT topic, lane,
       count(*) FILTER (WHERE NOT delayed) AS messages,
       extract(epoch FROM clock_timestamp() - min(since) FILTER (WHERE NOT delayed))::float8 AS oldest,
       count(*) FILTER (WHERE delayed) AS delayed
FROM (SELECT m.* FROM (
    SELECT m.id, m.topic, m.lane, m.position, m.xid,
           greatest(m.born_at, m.decided_at, m.deliver_at) AS since,
           coalesce(m.deliver_at > statement_timestamp(), false) AS delayed
    FROM outbox.message m
    WHERE m.state = 'COMMITTED' AND m.lane = ANY (%(lanes)s::smallint[]) AND m.xid >= %(xmax)s::xid8
    UNION ALL
    SELECT m.id, m.topic, m.lane, m.position, m.xid,
           greatest(m.born_at, m.decided_at, m.deliver_at),
           coalesce(m.deliver_at > statement_timestamp(), false)
    FROM outbox.message m
    WHERE m.state = 'COMMITTED' AND m.lane = ANY (%(lanes)s::smallint[]) AND m.xid = ANY (%(xip)s::xid8[])
) m
WHERE NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)
    AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b
                                 WHERE %(partial)s AND b.xid >= %(xmin)s::xid8
                                     AND (%(before)s::bigint IS NULL
                                          OR (b.epoch = %(epoch)s AND b.batch > %(before)s::bigint))) p WHERE p.position = m.position)
LIMIT %(most)s::bigint) m
GROUP BY topic, lane

-- name: backlog_from_start
-- The same for lanes without a floor (a new schema, a restore): everything that has no publication.
SELECT m.topic, m.lane,
       count(*) FILTER (WHERE NOT delayed) AS messages,
       extract(epoch FROM clock_timestamp() - min(since) FILTER (WHERE NOT delayed))::float8 AS oldest,
       count(*) FILTER (WHERE delayed) AS delayed
FROM (SELECT m.* FROM (
    SELECT m.id, m.topic, m.lane, m.position,
           greatest(m.born_at, m.decided_at, m.deliver_at) AS since,
           coalesce(m.deliver_at > statement_timestamp(), false) AS delayed
    FROM outbox.message m
    WHERE m.state = 'COMMITTED' AND m.lane = ANY (%(lanes)s::smallint[])
) m
WHERE NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)
    AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b) p
                    WHERE p.position = m.position)
LIMIT %(most)s::bigint) m
GROUP BY m.topic, m.lane

-- name: published
-- Messages published in the last seconds, in all, and a sample of which topics and lanes they belong to. Bounded:
-- the newest 20,000 batches of each present owner are looked at, and up to 2,000 messages of at most 200 of them
-- looked up. The number of messages of a batch is the size of its array of positions, of 8 bytes each behind 20 (24 with
-- the length word, which is not always counted), so that the arrays need not be read. A half message's
-- position is not its id, so its topic is not found here: it is counted without one.
WITH newest AS (
    SELECT o.epoch, (SELECT b.batch FROM outbox.publication b
                     WHERE b.epoch = o.epoch ORDER BY b.batch DESC LIMIT 1) AS batch
    FROM (SELECT DISTINCT l.epoch FROM outbox.lane l) o
), recent AS MATERIALIZED (
    SELECT b.epoch, b.batch, b.lo, (pg_column_size(b.positions) - 20) / 8 AS messages,
           row_number() OVER () AS number, count(*) OVER () AS batches
    FROM newest n
    JOIN outbox.publication b ON b.epoch = n.epoch AND b.batch > n.batch - 20000
    WHERE b.published_at > statement_timestamp() - make_interval(secs => %(window)s)
), sampled AS MATERIALIZED (
    -- "|| '{}'" reads each array once instead of once per message picked from it.
    SELECT b.positions || '{}'::bigint[] AS positions, r.messages,
           least(r.messages, ceil(2000.0 / count(*) OVER ())::integer) AS picks
    FROM recent r
    JOIN outbox.publication b USING (epoch, batch, lo)
    WHERE r.number %% greatest(r.batches / 100, 1) = 0
), picked AS (
    SELECT s.positions[1 + floor(random() * s.messages)::integer] AS position,
           s.messages / s.picks::float8 AS weight
    FROM sampled s
    CROSS JOIN LATERAL generate_series(1, s.picks) i
)
SELECT m.topic, m.lane, sum(p.weight) AS weight,
       (SELECT coalesce(sum(r.messages), 0) FROM recent r)::float8 AS total
FROM picked p
LEFT JOIN outbox.message m ON m.id = p.position
GROUP BY m.topic, m.lane

-- name: waiting
-- What is committed and delayed, or has expired. What is held is read by "groups" of holds.sql.
SELECT reason, count(*) AS messages,
       extract(epoch FROM min(due_at) - clock_timestamp())::float8 AS next_due,
       extract(epoch FROM clock_timestamp() - min(since))::float8 AS oldest
FROM outbox.waiting WHERE reason IN ('delayed', 'expired') GROUP BY reason ORDER BY reason

-- name: unsettled
-- Half messages nobody has decided, and messages left to an operator, by state and producer group. Overdue: due for so
-- many seconds, and no checker has come to them.
SELECT m.state, m.producer_group, count(*) AS messages,
       count(*) FILTER (WHERE m.state = 'UNKNOWN' AND
           coalesce(c.due_at, m.born_at + coalesce(m.check_after, g.check_after, interval '6 seconds'))
           < statement_timestamp() - make_interval(secs => %(overdue)s)) AS overdue,
       extract(epoch FROM clock_timestamp() - min(coalesce(m.decided_at, m.born_at)))::float8 AS oldest
FROM outbox.message m
LEFT JOIN outbox.pending_check c ON c.id = m.id
LEFT JOIN outbox.producer_group g ON g.name = m.producer_group
WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD')
GROUP BY m.state, m.producer_group ORDER BY m.state, m.producer_group
