-- What the job reads in PostgreSQL. Everything is SELECT; Spark puts each statement into a FROM clause.

-- name: server
-- Whose xids these are: the cluster, and its timeline, which changes when a standby is promoted. A promoted standby
-- gives xids out again that the lost primary had used. And whose messages: the database's.
-- (A standby that follows its primary onto a new timeline writes that down with its next checkpoint, or a flush before.)
SELECT (SELECT s.system_identifier FROM pg_control_system() s)::text AS system_identifier,
       CASE WHEN pg_is_in_recovery() THEN (SELECT greatest(c.timeline_id, r.min_recovery_end_timeline)
                                           FROM pg_control_checkpoint() c, pg_control_recovery() r)
            ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer END AS timeline,
       (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())::bigint AS database,
       pg_is_in_recovery() AS standby,
       current_setting('server_version_num')::integer AS version

-- name: isolation
-- Before anything else in a transaction: later statements see what has ended meanwhile, whatever the role's default is.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- name: settings
-- What database and role may set otherwise, for one transaction, so that a pooler gives it back as it was: no stranger's
-- function is found, a row that a policy would hide raises an error, and no time-out of the role ends a long read.
-- Those of `outbox.sessions`.
DO $$
BEGIN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog', true);
    PERFORM set_config(s.name, s.value, true)
    FROM (VALUES ('row_security', 'off'), ('client_encoding', 'UTF8'), ('standard_conforming_strings', 'on'),
                 ('datestyle', 'ISO'), ('intervalstyle', 'postgres'), ('timezone', 'UTC'), ('bytea_output', 'hex'),
                 ('extra_float_digits', '1'), ('array_nulls', 'on'), ('statement_timeout', '0'), ('lock_timeout', '0'),
                 ('idle_in_transaction_session_timeout', '0'), ('idle_session_timeout', '0'),
                 ('transaction_timeout', '0')) s (name, value)
    WHERE s.name <> 'transaction_timeout' OR current_setting('server_version_num')::integer >= 170000;
END $$

-- name: same_server
-- The first statement of a transaction that reads: this is a server of the cluster that the run began with, and every
-- transaction below "hi" has ended here too. A DSN may lead to several servers (a pooler, a list of hosts, a name with
-- several addresses). A standby that is behind is waited for.
DO $$
DECLARE
    here record;
    patience CONSTANT timestamptz := clock_timestamp() + interval '{patience} s';
BEGIN
    LOOP
        SELECT s.* INTO here FROM ({server}) s;
        IF here.system_identifier <> '{system_identifier}' OR here.database <> {database} THEN
            RAISE EXCEPTION 'outbox-etl: a session came to the cluster %, its database %, and the run began with the cluster '
                '{system_identifier}, its database {database}', here.system_identifier, here.database;
        END IF;
        EXIT WHEN here.timeline = {timeline} AND pg_snapshot_xmin(pg_current_snapshot()) >= '{hi}'::xid8;
        IF NOT here.standby OR clock_timestamp() > patience THEN
            RAISE EXCEPTION 'outbox-etl: a session came to a server on timeline %, where transactions below % have ended, and '
                'the run began on timeline {timeline}, where those below {hi} had',
                here.timeline, pg_snapshot_xmin(pg_current_snapshot());
        END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$

-- name: horizon
-- Every transaction below "hi" has ended. No message of theirs has an id above "top": a sequence is read as it is now,
-- and now is after the statement's snapshot.
-- Whatever had ended has an xid below "next". A standby has "replayed" so many bytes of its cluster's log.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS hi,
       pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS next, p.last_value AS top,
       CASE WHEN pg_is_in_recovery() THEN coalesce((pg_last_wal_replay_lsn() - '0/0')::bigint, 0) ELSE 0 END AS replayed
FROM outbox.position p

-- name: newest
-- The highest xid on record: in a restored database it may be far ahead of the cluster's own. Reads all events and
-- publications; asked for a window of all that there is. (Whatever a message became has its event; what it was born as
-- has none.)
SELECT greatest((SELECT max(e.xid::text::bigint) FROM outbox.event e),
                (SELECT max(p.xid::text::bigint) FROM outbox.publication p),
                (SELECT m.xid::text::bigint FROM outbox.message m
                 WHERE m.state = 'COMMITTED' ORDER BY m.xid DESC LIMIT 1),
                (SELECT max(m.xid::text::bigint) FROM outbox.message m WHERE m.state = 'UNKNOWN'), 0) AS xid

-- name: barrier
-- A commit of the job's own, on disk before it returns. Without it a crash of PostgreSQL could forget transactions that
-- were read (synchronous_commit = off) and give their xids out again, below a watermark that has passed them.
-- So many bytes of the cluster's log are on disk then.
SELECT (pg_logical_emit_message(true, 'outbox.etl', '') - '0/0')::bigint AS wal,
       set_config('synchronous_commit', 'on', true) AS durable

-- name: lock
-- One run at a time per target. Held by a session, so that it ends with the run, however that ends.
SELECT pg_catalog.pg_try_advisory_lock(pg_catalog.hashtextextended(?, 0)) AS is_ours,
       pg_catalog.set_config('idle_session_timeout', '0', false) AS idles,
       extract(epoch FROM pg_catalog.clock_timestamp())::double precision AS now

-- name: unlock
-- A run that has ended lets the next one begin at once.
SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended(?, 0))

-- name: partitions
-- The ranges of ids that exist. Read once per run: a partition made later holds later windows' rows only.
SELECT p.name::text AS name, p.lower, p.upper FROM outbox.partition p

-- name: attachments
-- The tables of all partitions, in whatever state, and the transaction that attached each: detached and attached again, it
-- is another one. "dropping": `outbox history drop` has put its mark on the range's table of messages.
SELECT c.relname::text AS name,
       CASE WHEN i.inhrelid IS NULL THEN 'detached' WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END AS state,
       coalesce(i.xmin::text, '') AS since,
       coalesce(obj_description(to_regclass('outbox.message_p' || split_part(c.relname, '_p', 2)), 'pg_class'), '')
           LIKE 'outbox history drop:%' AS dropping
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
    AND c.relname ~ '^(message|publication|event)_p[0-9]{15}$'
ORDER BY 1

-- name: columns
-- The tables as they are, to be compared with what the job knows. A domain is read as the type that it is of.
SELECT c.relname::text AS "table", a.attname::text AS "column",
       CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
            ELSE format_type(a.atttypid, a.atttypmod) END AS type
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_type t ON t.oid = a.atttypid
WHERE c.oid IN ('outbox.message'::regclass, 'outbox.event'::regclass, 'outbox.publication'::regclass)
    AND a.attnum > 0 AND NOT a.attisdropped

-- name: message_columns
-- A message, in the types that travel cheaply; Spark makes the map of headers and looks whether the body is JSON.
-- A remark counts once it says why a state was given: that of an undecided half message is written over without a
-- transition, so no window would bring its last one.
SELECT m.xid::text::bigint AS xid, m.position, m.id, m.message_id, m.born_at, m.decided_at, m.deliver_at, m.deliver_before,
       m.queue, m.lane, m.state, m.topic, m.key, m.body, m.headers::text AS headers, m.order_key, m.selector, m.tags, m.index_keys,
       m.producer_group, m.transaction_id, m.checker, m.biz_type, m.biz_id, m.traceparent,
       CASE WHEN m.state <> 'UNKNOWN' THEN m.remark END AS remark
FROM outbox.message m

-- name: in_window
-- The transactions of a window.
m.xid >= '{lo}'::xid8 AND m.xid < '{hi}'::xid8

-- name: from_elsewhere
-- Rows that a restore brought: this cluster has not given out their xids. None above the highest that was found: what
-- others write while this is read may be seen by halves, and comes with the next window.
m.xid >= '{next}'::xid8 AND m.xid <= '{foreign}'::xid8

-- name: is_foreign
-- The same, as what is said of new messages: whatever this cluster has written since the window's end is left out, though
-- it may have such xids too. What it has is below the end of the statement's snapshot.
m.xid >= '{next}'::xid8 AND m.xid <= '{foreign}'::xid8 AND m.xid >= pg_snapshot_xmax(pg_current_snapshot())

-- name: is_committed
-- What became COMMITTED: sent late, decided, or released after a delay. The finder's index has it by xid.
state = 'COMMITTED'

-- name: was_decided
-- Every other state is a transition, and a transition writes its event in the same transaction. The events of a range
-- are few; the messages are then found by id.
state <> 'COMMITTED' AND id IN (
    SELECT e.id FROM outbox.event e
    WHERE e.id >= {lower} AND e.id < {upper} AND e.kind = 'transition'
        AND e.xid >= '{lo}'::xid8 AND e.xid < '{hi}'::xid8
)

-- name: touches_known
-- Whether a window without events of known messages did something to a message that was known before it, with an id up to {known}: it
-- became COMMITTED, or was published. A batch has no position below its "lo", and a message that was known has no position above
-- {known} unless it became COMMITTED in the window.
SELECT EXISTS (SELECT FROM outbox.message m WHERE m.state = 'COMMITTED' AND m.id <= {known} AND {limits})
    OR EXISTS (SELECT FROM outbox.publication m WHERE m.lo <= {known} AND {limits}) AS is_so

-- name: event_columns
-- What happened to half messages.
SELECT m.xid::text::bigint AS xid, m.id, m.message_id, m.happened_at, m.kind, m.from_state, m.to_state, m.answer,
       m.actor, m.reason
FROM outbox.event m

-- name: publication_columns
-- What was published; "id" is the lowest position of the batch, by which the table is split.
SELECT m.xid::text::bigint AS xid, m.epoch, m.batch, m.lo AS id, m.published_at, m.positions, m.partitions, m.offsets
FROM outbox.publication m

-- name: few_transaction_events
-- The first of a window's events for COPY, in the types that its reader has. Ids above {top} are of no run: after a
-- sequence was set back, say.
SELECT q.xid, q.id, q.message_id::text AS message_id, q.happened_at, q.kind, q.from_state, q.to_state, q.answer, q.actor, q.reason
FROM ({rows}) q
WHERE q.id >= 0 AND q.id <= {top}
LIMIT {most}

-- name: few_publications
-- The same of a window's publications, one row for each message of a batch.
SELECT u.position, u.partition, u."offset", q.published_at, q.epoch, q.batch, q.xid
FROM ({rows}) q CROSS JOIN LATERAL unnest(q.positions, q.partitions, q.offsets) u (position, partition, "offset")
WHERE q.id >= 0 AND q.id <= {top}
LIMIT {most}

-- name: copied
-- New messages for COPY, in the types that its reader has.
SELECT q.xid, q.position, q.id, q.message_id::text AS message_id, q.born_at, q.decided_at, q.deliver_at, q.deliver_before,
       q.queue, q.lane, q.state, q.topic, q.key, q.body, q.headers, q.order_key, q.selector, q.tags, q.index_keys,
       q.producer_group, q.transaction_id, q.checker, q.biz_type, q.biz_id, q.traceparent, q.remark,
       q.published_at, q.partition, q."offset", q.checks
FROM ({messages}) q

-- name: joining
-- For the transaction that reads new messages: their publications are hashed, in memory, whatever statistics say or do not
-- say of them (a partition is new, arrays are of any length). Spark reads in parallel, and nothing is worth compiling.
DO $$
BEGIN
    PERFORM set_config('work_mem', '64MB', true) WHERE pg_size_bytes(current_setting('work_mem')) < 64 << 20;
    PERFORM set_config(name, 'off', true)
    FROM unnest(ARRAY['enable_nestloop', 'enable_mergejoin', 'jit']) name;
    PERFORM set_config('max_parallel_workers_per_gather', '0', true);
END $$

-- name: new_messages
-- Messages that the warehouse does not know, of one range of ids ("messages" has their columns), each with its first
-- publication and the number of its checks: here rows lie beside each other that Spark would have to shuffle.
-- Near: published at a position of the range, in one pass over its batches. Far: the others, decided much later than they
-- were born, each looked up by its position in its partition ("partitions": where each begins).
-- Whatever there was at the window's end counts, of earlier windows too.
SELECT t.*, coalesce(near.published_at, far.published_at) AS published_at,
       coalesce(near.partition, far.partition) AS partition, coalesce(near."offset", far."offset") AS "offset",
       coalesce(asked.checks, 0) AS checks
FROM ({messages}) t
LEFT JOIN (
    SELECT DISTINCT ON (u.position) u.position, u.partition, u."offset", m.published_at
    FROM outbox.publication m
        CROSS JOIN LATERAL unnest(m.positions, m.partitions, m.offsets) u (position, partition, "offset")
    WHERE m.lo >= {partition} AND m.lo < {upper} AND int8range(m.lo, m.hi, '[]') && int8range({lower}, {upper})
        AND u.position >= {lower} AND u.position < {upper} AND {below}
    ORDER BY u.position, m.published_at, u."offset" NULLS FIRST, u.partition NULLS FIRST
) near ON near.position = t.position
LEFT JOIN LATERAL (
    SELECT first.*
    FROM (
            SELECT max(b.lower) AS lower FROM (VALUES {partitions}) b (lower)
            WHERE b.lower <= t.position AND t.state = 'COMMITTED' AND (t.position < {lower} OR t.position >= {upper})
        ) its
        CROSS JOIN LATERAL (
            SELECT m.partitions[at.place] AS partition, m.offsets[at.place] AS "offset", m.published_at
            FROM outbox.publication m CROSS JOIN LATERAL (SELECT array_position(m.positions, t.position) AS place) at
            WHERE its.lower IS NOT NULL
                AND int8range(m.lo, m.hi, '[]') @> t.position AND m.lo >= its.lower AND m.lo <= t.position
                AND at.place IS NOT NULL AND {below}
            ORDER BY m.published_at, m.offsets[at.place] NULLS FIRST, m.partitions[at.place] NULLS FIRST
            LIMIT 1
        ) first
) far ON true
LEFT JOIN (
    SELECT m.id, m.message_id, count(*)::integer AS checks
    FROM outbox.event m
    WHERE m.id >= {lower} AND m.id < {upper} AND m.kind = 'check' AND {below}
    GROUP BY m.id, m.message_id
) asked ON asked.id = t.id AND asked.message_id = t.message_id
WHERE t.id >= {lower} AND t.id < {upper}
