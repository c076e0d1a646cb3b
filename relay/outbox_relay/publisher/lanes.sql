-- Ownership and progress of lanes. Lease times are the database's.

-- name: lock_timeout
-- Bounds waits for locks in this transaction from here on; 0: no bound.
SELECT set_config('lock_timeout', %(ms)s, true)

-- name: lock
-- One relay at a time takes lanes; the others wait for its short transaction.
SELECT lane FROM outbox.lane ORDER BY lane FOR UPDATE

-- name: lock_holders
-- Who may hold row locks of outbox.lane, oldest transaction first: all that have more than read it in a transaction
-- that is open, except those that wait themselves. A barrier only reads it. (A prepared transaction has no process;
-- of another user's session only the process and the user's name are shown.)
SELECT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
            ELSE format('%s (pid %s, user %s, %s for %s s)', coalesce(nullif(a.application_name, ''), 'unnamed'), l.pid,
                        a.usename, coalesce(a.state, 'state unknown'),
                        round(extract(epoch FROM clock_timestamp() - a.state_change))) END
FROM (SELECT DISTINCT pid FROM pg_locks
      WHERE relation = 'outbox.lane'::regclass AND granted AND mode <> 'AccessShareLock'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND pid IS DISTINCT FROM pg_backend_pid()) l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.wait_event_type IS DISTINCT FROM 'Lock'
ORDER BY a.xact_start NULLS FIRST LIMIT 5

-- name: holders
-- Who holds lanes now, and for how many more seconds. A holder whose database session is gone is dead: its lease
-- need not be waited for. (A session of a pooler stays; then the lease decides.)
SELECT e.owner, greatest(extract(epoch FROM e.leased_until - clock_timestamp()), 0)::float8 AS seconds
FROM outbox.lease e
WHERE e.owner <> %(owner)s AND e.leased_until > clock_timestamp()
    AND EXISTS (SELECT FROM outbox.lane l WHERE l.epoch = e.epoch AND l.owner = e.owner)
    AND EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = e.backend_pid)
ORDER BY 2 DESC

-- name: cluster
-- Which cluster this is: xids mean nothing in another one.
SELECT system_identifier FROM pg_control_system()

-- name: has_foreign_xids
-- Whether a COMMITTED row carries an xid that this cluster has not issued: it was restored from another one.
SELECT EXISTS (SELECT FROM outbox.message
               WHERE state = 'COMMITTED' AND xid >= pg_snapshot_xmax(pg_current_snapshot()))

-- name: adopt_unpublished
-- After such a restore, what was not published is committed anew, in the order that it had: xids of another cluster
-- would hide it, or show it again at every poll. The positions are taken in a step of their own, because a join may
-- turn the order round.
WITH placed AS MATERIALIZED (
    SELECT o.id, nextval('outbox.position') AS position
    FROM (SELECT m.id FROM outbox.message m
          WHERE m.state = 'COMMITTED' AND pg_current_xact_id() IS NOT NULL
              AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b) p
                              WHERE p.position = m.position)
              AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)
          ORDER BY m.position) o
)
UPDATE outbox.message m SET xid = pg_current_xact_id(), position = p.position
FROM placed p WHERE m.id = p.id

-- name: adopt_published
-- And what was published, or waits, gets the oldest xid there is.
UPDATE outbox.message SET xid = '3'
WHERE state = 'COMMITTED' AND xid >= pg_snapshot_xmax(pg_current_snapshot()) AND xid <> pg_current_xact_id()

-- name: epoch
-- A new epoch, higher than every earlier one.
SELECT nextval('outbox.epoch')

-- name: progress
-- How far each lane is published: by the last publication of its epoch that speaks for it, unless it is stopped.
-- A lane that has never been published, or whose snapshots come from another cluster, has no progress.
SELECT l.lane,
       CASE WHEN l.system_identifier = %(system_identifier)s
            THEN coalesce(p.snapshot, l.snapshot)::text END,
       CASE WHEN p.snapshot IS NULL THEN l.base ELSE p.base END::text,
       CASE WHEN p.snapshot IS NULL THEN l.after ELSE p.after END,
       l.stopped_error IS NOT NULL
FROM outbox.lane l
LEFT JOIN LATERAL (
    SELECT b.snapshot, b.base, b.after FROM outbox.publication b
    WHERE b.epoch = l.epoch AND b.batch >= l.joined AND b.lanes @> ARRAY[l.lane] AND l.stopped_error IS NULL
    ORDER BY b.batch DESC, b.lo DESC LIMIT 1
) p ON true
ORDER BY l.lane

-- name: doubts
-- Up to which position a lane's messages are in doubt for whoever takes it. The last owner may have given Kafka all that it
-- could read, unless it gave the lane back, or the lane was stopped and not being tried again (then nothing of it was on
-- the wire, or the stop's record covers it), on this server and timeline. What was stopped at without doubt stays so.
WITH here AS (
    SELECT ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS timeline,
           (SELECT last_value FROM outbox.position) AS newest
), settled AS (
    SELECT l.lane,
           l.stopped_error IS NOT NULL AND l.retrying_at IS NULL AND s.is_here AS is_stopped,
           l.epoch = 0
               OR (s.is_here AND NOT EXISTS (SELECT FROM outbox.lease e WHERE e.epoch = l.epoch)) AS is_given_back
    FROM outbox.lane l, here h,
         LATERAL (SELECT coalesce(l.system_identifier = %(system_identifier)s AND l.timeline = h.timeline
                                  AND NOT %(restored)s, false) AS is_here) s
)
SELECT l.lane,
       CASE WHEN s.is_given_back OR s.is_stopped THEN l.doubted_until
            ELSE greatest(l.doubted_until, h.newest) END,
       CASE WHEN s.is_stopped AND NOT l.stopped_in_doubt THEN l.stopped_message::text END
FROM outbox.lane l JOIN settled s USING (lane) CROSS JOIN here h
ORDER BY l.lane

-- name: take
-- Take a lane under a new epoch, with the progress that it starts from.
UPDATE outbox.lane
SET owner = %(owner)s, epoch = %(epoch)s, joined = 0, system_identifier = %(system_identifier)s,
    snapshot = %(snapshot)s::pg_snapshot, base = %(base)s::pg_snapshot, after = %(after)s,
    timeline = ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer,
    doubted_until = %(doubted_until)s, stopped_in_doubt = false,
    stopped_error = NULL, stopped_message = NULL, stopped_at = NULL, retrying_at = NULL, retry_requested_at = NULL
WHERE lane = %(lane)s

-- name: clear
-- Leases of earlier owners are of no further use, once their lanes are taken.
DELETE FROM outbox.lease

-- name: lease
-- Lease the lanes that were taken.
INSERT INTO outbox.lease (epoch, owner, backend_pid, leased_until)
VALUES (%(epoch)s, %(owner)s, pg_backend_pid(), clock_timestamp() + make_interval(secs => %(lease)s))

-- name: renew
-- Extend the lease, if all lanes are still ours; no row: they are not.
UPDATE outbox.lease SET leased_until = clock_timestamp() + make_interval(secs => %(lease)s)
WHERE epoch = %(epoch)s AND owner = %(owner)s
    AND (SELECT count(*) FROM outbox.lane l WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s) = %(owned)s

-- name: renewal_settings
-- A renewal waits for no lock and no standby for longer than the lease that it renews; its commit need only be seen.
SELECT set_config('lock_timeout', %(ms)s, false), set_config('statement_timeout', %(ms)s, false),
       set_config('synchronous_commit', 'local', false)

-- name: loop
-- What a session is doing: its state, what it waits on, who holds the lock that it waits for, and whether it works on a
-- statement. One that waits for its client (to send a statement, or to take its answer) does not.
SELECT a.state, a.wait_event_type || ': ' || a.wait_event,
       (SELECT string_agg(format('%%s (pid %%s, %%s)', coalesce(nullif(b.application_name, ''), 'unnamed'), b.pid,
                                 coalesce(b.state, 'state unknown')), ', ')
        FROM pg_stat_activity b WHERE b.pid = ANY (pg_blocking_pids(a.pid))),
       a.state = 'active' AND a.wait_event_type IS DISTINCT FROM 'Client'
FROM pg_stat_activity a WHERE a.pid = %(pid)s

-- name: release
-- Give the lanes back on a clean stop, so that the next relay need not wait. Without its lease a relay owns nothing; the
-- owner's name only stays in a lane whose row somebody holds, since a stop waits for nobody. An epoch without a lease has
-- given its lanes back: all that Kafka may have of them has a publication, or a position up to doubted_until. Where that
-- could not be written, the lease ends, and stays.
WITH freed AS (
    UPDATE outbox.lane f SET owner = NULL, doubted_until = greatest(f.doubted_until, (
        SELECT d.until FROM unnest(%(lanes)s::smallint[], %(until)s::bigint[]) d (lane, until) WHERE d.lane = f.lane))
    WHERE f.lane IN (SELECT l.lane FROM outbox.lane l WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s
                     FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING f.lane
), unwritten AS (
    SELECT l.lane FROM outbox.lane l JOIN unnest(%(lanes)s::smallint[], %(until)s::bigint[]) d (lane, until) USING (lane)
    WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s AND l.doubted_until < d.until
        AND l.lane NOT IN (SELECT f.lane FROM freed f)
), ended AS (
    UPDATE outbox.lease SET leased_until = clock_timestamp()
    WHERE epoch = %(epoch)s AND owner = %(owner)s AND EXISTS (SELECT FROM unwritten)
)
DELETE FROM outbox.lease
WHERE epoch = %(epoch)s AND owner = %(owner)s AND NOT EXISTS (SELECT FROM unwritten)

-- name: stop
-- A lane stops at a message that cannot be published: its progress is written here from now on. Nothing of it is on the
-- wire: it may be set aside, unless an earlier try is in doubt. (A retry that was requested meanwhile stays requested.) No
-- row: somebody holds the lane's row, or it is not ours; the relay waits for nobody, and writes it later.
UPDATE outbox.lane
SET snapshot = %(snapshot)s::pg_snapshot, base = %(base)s::pg_snapshot, after = %(after)s,
    stopped_error = %(error)s, stopped_message = %(message_id)s, retrying_at = NULL,
    stopped_in_doubt = %(in_doubt)s, doubted_until = greatest(doubted_until, %(doubted_until)s),
    stopped_at = CASE WHEN stopped_error = %(error)s THEN stopped_at ELSE clock_timestamp() END
WHERE lane = (SELECT l.lane FROM outbox.lane l WHERE l.lane = %(lane)s AND l.epoch = %(epoch)s
              FOR NO KEY UPDATE SKIP LOCKED)

-- name: resume
-- A stopped lane goes on; its progress is in publications again, from this batch on. No row: as for a stop.
UPDATE outbox.lane
SET stopped_error = NULL, stopped_message = NULL, stopped_at = NULL, retrying_at = NULL, retry_requested_at = NULL,
    stopped_in_doubt = false, joined = %(batch)s
WHERE lane = (SELECT l.lane FROM outbox.lane l WHERE l.lane = %(lane)s AND l.epoch = %(epoch)s
              FOR NO KEY UPDATE SKIP LOCKED)

-- name: requested
-- The stopped lanes that somebody has asked to be tried again.
SELECT lane FROM outbox.lane WHERE epoch = %(epoch)s AND retry_requested_at IS NOT NULL

-- name: announce
-- A stopped lane is about to be read again. Committed before that, so that what it stopped at cannot be set aside while
-- it may be on its way to Kafka. No row: somebody holds the lane's lock, as an operator who sets that message aside.
UPDATE outbox.lane SET retrying_at = clock_timestamp(), retry_requested_at = NULL
WHERE lane = (SELECT l.lane FROM outbox.lane l WHERE l.lane = %(lane)s AND l.epoch = %(epoch)s
              FOR NO KEY UPDATE SKIP LOCKED)

-- name: withdraw
-- Lanes whose retry was announced are not read any more, and nothing of them is on the wire. The announcement stays where
-- somebody holds the lane's row, where the row does not hold yet what came of the retry, and where that is in doubt; the
-- next owner ends it.
UPDATE outbox.lane SET retrying_at = NULL
WHERE lane IN (SELECT l.lane FROM outbox.lane l
               WHERE l.epoch = %(epoch)s AND l.retrying_at IS NOT NULL AND l.lane = ANY (%(lanes)s::smallint[])
               FOR NO KEY UPDATE SKIP LOCKED)

-- name: newest
-- The newest position: no message that was read by now has a higher one.
SELECT last_value FROM outbox.position
