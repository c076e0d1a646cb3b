-- Ownership and progress of lanes. Lease times are the database's.

-- name: lock_timeout
-- Bounds waits for locks in this transaction from here on; 0: no bound.
SELECT set_config('lock_timeout', %(ms)s, true)

-- name: idle_timeout
-- Bounds how long this transaction may wait for its client.
SELECT set_config('idle_in_transaction_session_timeout', %(ms)s, true)

-- name: lock
-- One relay at a time takes lanes; the others wait for its short transaction. Renewals wait, too. The lock of a table, not
-- an advisory one, which any session of the database could hold.
LOCK TABLE outbox.lease IN SHARE ROW EXCLUSIVE MODE

-- name: lock_free
-- Of these lanes those that no living relay owns, locked. Living: its lease lasts, its database session is there, and its
-- process has not joined again. (A session of a pooler stays; then the lease decides.) A row that another session holds is left for later.
SELECT l.lane FROM outbox.lane l
WHERE l.lane = ANY (%(lanes)s::smallint[])
    AND NOT EXISTS (SELECT FROM outbox.lease e
                    WHERE e.epoch = l.epoch AND e.owner = l.owner AND e.leased_until > clock_timestamp()
                        AND NOT EXISTS (SELECT FROM outbox.lease n WHERE n.owner = e.owner AND n.epoch > e.epoch)
                        AND e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a))
ORDER BY l.lane FOR UPDATE SKIP LOCKED

-- name: not_ended
-- Whether a relay that delivers at least once had some of these lanes last, and may still send: nothing fences it. It is done
-- when it has given them back, and dead when its lease has run out and its session is gone.
SELECT e.owner FROM outbox.lane l JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner
WHERE l.lane = ANY (%(lanes)s::smallint[]) AND l.mode = 'at-least-once'
    AND (e.leased_until > clock_timestamp() OR e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a))
LIMIT 1

-- name: is_exactly_once
-- Whether messages of these lanes go to Kafka in transactions, or did until now.
SELECT EXISTS (SELECT FROM outbox.exactly_once x WHERE x.lanes && %(lanes)s::smallint[] AND NOT x.is_over)

-- name: lock_holders
-- Who may hold locks of lanes, or of what waits in them, oldest transaction first: all that have more than read it in a transaction
-- that is open, except those that wait themselves. A barrier only reads it. (A prepared transaction has no process;
-- of another user's session only the process and the user's name are shown.)
SELECT CASE WHEN l.pid IS NULL THEN 'a prepared transaction'
            ELSE format('%s (pid %s, user %s, %s for %s s)', coalesce(nullif(a.application_name, ''), 'unnamed'), l.pid,
                        a.usename, coalesce(a.state, 'state unknown'),
                        round(extract(epoch FROM clock_timestamp() - a.state_change))) END
FROM (SELECT DISTINCT pid FROM pg_locks
      WHERE relation IN ('outbox.lane'::regclass, 'outbox.lease'::regclass, 'outbox.waiting'::regclass) AND granted AND mode <> 'AccessShareLock'
          AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
          AND pid IS DISTINCT FROM pg_backend_pid()) l
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE a.wait_event_type IS DISTINCT FROM 'Lock'
ORDER BY a.xact_start NULLS FIRST LIMIT 5

-- name: leadership
-- The lowest epoch of the other relays that lead lanes of this shard (null: none does), which lanes no living relay owns, whether this
-- relay is asked to drain (null: its lease is gone), the lanes that are its own, the epoch that its session was marked
-- with, how often topics were changed; whether another relay of this shard, or of the version before, has Kafka, and whether
-- one that has lanes lacks it. See "lock_free".
WITH living AS MATERIALIZED (
    SELECT e.epoch, e.owner, e.shard, e.lacks_kafka, NOT e.is_draining AND NOT e.lacks_kafka AS may_lead FROM outbox.lease e
    WHERE e.leased_until > clock_timestamp()
        AND NOT EXISTS (SELECT FROM outbox.lease n WHERE n.owner = e.owner AND n.epoch > e.epoch)
        AND e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a)
)
SELECT (SELECT min(e.epoch) FROM living e JOIN outbox.lane l ON l.epoch = e.epoch AND l.owner = e.owner
        WHERE e.epoch <> %(epoch)s AND e.shard = %(shard)s AND e.may_lead),
       ARRAY(SELECT l.lane FROM outbox.lane l
             WHERE NOT EXISTS (SELECT FROM living e WHERE e.epoch = l.epoch AND e.owner = l.owner)),
       (SELECT e.is_draining FROM outbox.lease e WHERE e.epoch = %(epoch)s AND e.owner = %(owner)s),
       ARRAY(SELECT l.lane FROM outbox.lane l WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s),
       current_setting('outbox.relay_epoch', true),
       (SELECT g.generation FROM outbox.topic_generation g),
       EXISTS (SELECT FROM living e
               WHERE e.epoch <> %(epoch)s AND coalesce(e.shard, %(shard)s) = %(shard)s AND e.may_lead),
       EXISTS (SELECT FROM living e JOIN outbox.lane l ON l.epoch = e.epoch AND l.owner = e.owner
               WHERE e.epoch <> %(epoch)s AND coalesce(e.shard, %(shard)s) = %(shard)s AND e.lacks_kafka)

-- name: others
-- How many lanes other living relays own.
SELECT count(*) FROM outbox.lane l
JOIN outbox.lease e ON e.epoch = l.epoch AND e.owner = l.owner
WHERE e.owner <> %(owner)s AND e.leased_until > clock_timestamp()
    AND e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a)

-- name: disagreeing
-- A living relay whose protocol this version does not understand, or one that divides the lanes by another number. One of the version
-- before, which states no shard, may have any lane.
SELECT e.owner, e.version, coalesce(e.shard, '1/1') FROM outbox.lease e
WHERE e.leased_until > clock_timestamp() AND e.owner <> %(owner)s
    AND (abs(e.version - %(version)s) > 1 OR split_part(coalesce(e.shard, '1/1'), '/', 2)::integer <> %(count)s)
    AND e.backend_pid IN (SELECT a.pid FROM pg_stat_activity a)
ORDER BY abs(e.version - %(version)s) > 1 DESC, e.epoch LIMIT 1

-- name: lane_numbers
-- How many lanes this database has.
SELECT count(*) FROM outbox.lane

-- name: join
-- A relay begins: a lease without lanes, under a new epoch, higher than every earlier one.
INSERT INTO outbox.lease (epoch, owner, backend_pid, version, shard, is_draining, joined_at, leased_until)
VALUES (nextval('outbox.epoch'), %(owner)s, pg_backend_pid(), %(version)s, %(shard)s, %(is_draining)s,
        coalesce(%(since)s::timestamptz, clock_timestamp()), clock_timestamp() + make_interval(secs => %(lease)s))
RETURNING epoch, joined_at

-- name: mark_session
-- Lets a relay notice that a pooler gives its statements to different sessions.
SELECT set_config('outbox.relay_epoch', %(epoch)s, false)

-- name: session_mark
-- Whose session this is: a reset, or a pooler's other session, has another mark, or none.
SELECT current_setting('outbox.relay_epoch', true)

-- name: is_copied
-- Whether the rows of this database were copied into it since lanes were last taken: a dump was restored, into this cluster or another one.
-- outbox.origin states the transaction that wrote it, and so does a publication where no relay of this version has taken lanes; a copy
-- has that number as data, and the restore's as its xmin. Vacuums, VACUUM FULL and pg_upgrade keep both.
SELECT coalesce((SELECT o.xmin <> o.xid::xid FROM outbox.origin o WHERE o.xid IS NOT NULL),
                (SELECT b.xmin <> b.xid::xid FROM outbox.publication b ORDER BY b.epoch DESC, b.batch DESC, b.lo DESC LIMIT 1),
                false)

-- name: note_origin
-- The lanes are taken here: from now on the rows are this database's own.
UPDATE outbox.origin SET xid = pg_current_xact_id()

-- name: leave_timeline
-- After a restore into the same cluster no lane has been taken on this server: whoever takes one finds it left by another one. A lane
-- whose row another session holds is missing in what is returned.
UPDATE outbox.lane SET timeline = CASE WHEN timeline IS NULL OR system_identifier <> (SELECT c.system_identifier FROM pg_control_system() c) THEN timeline ELSE 0 END
WHERE lane IN (SELECT l.lane FROM outbox.lane l FOR NO KEY UPDATE SKIP LOCKED)
RETURNING lane

-- name: has_foreign_xids
-- Whether rows carry the xids of another cluster: they were copied and lanes were last taken there, or a COMMITTED one has an xid that
-- this cluster has not issued.
SELECT (%(is_copied)s AND EXISTS (SELECT FROM outbox.lane l JOIN pg_control_system() c ON c.system_identifier <> l.system_identifier))
    OR EXISTS (SELECT FROM outbox.message
               WHERE state = 'COMMITTED' AND xid >= pg_snapshot_xmax(pg_current_snapshot()))

-- name: take_over_unpublished
-- After such a restore, what was not published is committed anew, at its old position: xids of another cluster would hide it, or
-- show it again at every poll. Producers that have taken a position already stay behind it.
UPDATE outbox.message m SET xid = pg_current_xact_id()
WHERE m.state = 'COMMITTED'
    AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b) p
                    WHERE p.position = m.position)
    AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)

-- name: take_over_published
-- And what was published, or waits, gets the oldest xid there is, unless its xid is older than every transaction that runs here: it would
-- be found again when the one with its number ends.
UPDATE outbox.message m SET xid = '3'
WHERE m.state = 'COMMITTED' AND m.xid >= pg_snapshot_xmin(pg_current_snapshot())
    AND (EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b) p WHERE p.position = m.position)
         OR EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id))

-- name: floors
-- The floor of each lane: that of the last publication of its epoch that speaks for it, unless it is stopped; whether some
-- messages beyond it are published, and the lane's epoch. Those of a relay of the version before may have a base, beyond which some are. A lane that has never
-- been published, or whose snapshots come from another cluster, has no floor.
SELECT l.lane, CASE WHEN l.system_identifier = (SELECT c.system_identifier FROM pg_control_system() c)
                    THEN coalesce(p.base, p.snapshot, l.base, l.snapshot)::text END,
       coalesce(p.is_partial, l.is_partial) OR coalesce(p.base, CASE WHEN p.snapshot IS NULL THEN l.base END) IS NOT NULL,
       l.epoch
FROM outbox.lane l
LEFT JOIN LATERAL (
    SELECT b.base, b.snapshot, b.is_partial FROM outbox.publication b
    WHERE b.epoch = l.epoch AND b.batch >= l.joined AND b.lanes @> ARRAY[l.lane] AND l.stopped_error IS NULL
    ORDER BY b.batch DESC, b.lo DESC LIMIT 1
) p ON true
ORDER BY l.lane

-- name: note_failover
-- Note that these lanes were last taken on another server: a standby was promoted, a backup restored, a dump read in. One
-- row for each server, by whoever takes lanes there first; none where lanes were taken there since. (A row may have come
-- with a dump that is read into that server again: it is written again then, and not scanned.)
INSERT INTO outbox.failover (system_identifier, timeline, from_system_identifier, from_timeline)
SELECT h.system_identifier, h.timeline, l.system_identifier, l.timeline
FROM (SELECT c.system_identifier,
             ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS timeline
      FROM pg_control_system() c) h,
     outbox.lane l
WHERE l.lane = ANY (%(lanes)s::smallint[]) AND (l.system_identifier, l.timeline) <> (h.system_identifier, h.timeline)
ORDER BY l.epoch DESC LIMIT 1
ON CONFLICT (system_identifier, timeline) DO UPDATE
SET from_system_identifier = excluded.from_system_identifier, from_timeline = excluded.from_timeline,
    noticed_at = excluded.noticed_at, scanned_at = NULL, lost = NULL
WHERE NOT EXISTS (SELECT FROM outbox.lane x
                  WHERE (x.system_identifier, x.timeline) = (excluded.system_identifier, excluded.timeline))
RETURNING from_system_identifier, from_timeline, system_identifier, timeline

-- name: doubt_held
-- The relay of another server may have published what this one shows as waiting behind a parked key. Returned are the lanes
-- with such a row that another session holds: nothing waits for it, and the lane is not taken before all of it is marked.
WITH due AS MATERIALIZED (
    SELECT w.id, l.lane FROM outbox.lane l JOIN outbox.parked_key k ON k.lane = l.lane JOIN outbox.waiting w ON w.parked = k.number
    WHERE l.lane = ANY (%(lanes)s::smallint[]) AND NOT w.in_doubt
        AND (%(restored)s OR (l.system_identifier, l.timeline)
            <> ((SELECT c.system_identifier FROM pg_control_system() c),
                ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer))
), free AS MATERIALIZED (
    SELECT w.id FROM outbox.waiting w WHERE w.id IN (SELECT d.id FROM due d) FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE outbox.waiting SET in_doubt = true WHERE id IN (SELECT f.id FROM free f)
)
SELECT DISTINCT d.lane FROM due d WHERE NOT EXISTS (SELECT FROM free f WHERE f.id = d.id)

-- name: take
-- Take lanes at their floors; publications of this epoch speak for them from this batch on. A relay of the version before reads what a
-- floor does not see without what has a publication ("is_partial").
-- Up to which position a lane's messages are in doubt: the last owner may have given Kafka all that it could read, unless it gave the
-- lane back (then the lane has no owner, or its epoch no lease), or the lane was stopped and not being tried again (then nothing
-- of it was on the wire, or the stop's record covers it), on this server and timeline. What an owner sent that delivers exactly once
-- is in outbox.intent: Kafka decides. The last column: whether the last owner may still be at it.
WITH here AS (
    SELECT c.system_identifier, ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS timeline,
           (SELECT p.last_value FROM outbox.position p) AS newest
    FROM pg_control_system() c
), found AS (
    SELECT l.lane, f.floor, h.*,
           l.epoch = 0 OR l.mode = 'exactly-once'
               OR (s.is_here AND (l.owner IS NULL OR NOT EXISTS (SELECT FROM outbox.lease e WHERE e.epoch = l.epoch)
                                  OR (l.stopped_error IS NOT NULL AND l.retrying_at IS NULL))) AS is_settled
    FROM unnest(%(lanes)s::smallint[], %(floors)s::pg_snapshot[]) f (lane, floor) JOIN outbox.lane l ON l.lane = f.lane, here h,
         LATERAL (SELECT coalesce(l.system_identifier = h.system_identifier AND l.timeline = h.timeline
                                  AND NOT %(restored)s, false) AS is_here) s
)
UPDATE outbox.lane l
SET owner = %(owner)s, epoch = %(epoch)s, joined = %(batch)s, mode = %(delivery)s, system_identifier = o.system_identifier,
    snapshot = o.floor, base = NULL, after = NULL, is_partial = true, timeline = o.timeline,
    doubted_until = CASE WHEN o.is_settled THEN l.doubted_until ELSE greatest(l.doubted_until, o.newest) END,
    stopped_in_doubt = false,
    stopped_error = NULL, stopped_message = NULL, stopped_at = NULL, retrying_at = NULL, retry_requested_at = NULL
FROM found o WHERE l.lane = o.lane
RETURNING l.lane, l.doubted_until, NOT o.is_settled

-- name: clear
-- Leases that have ended are of no further use, once all their lanes are taken. A relay whose lease goes this way joins
-- again. A row that another session holds stays for whoever takes lanes next.
DELETE FROM outbox.lease
WHERE epoch IN (
    SELECT e.epoch FROM outbox.lease e
    WHERE e.epoch <> %(epoch)s
        AND (e.leased_until <= clock_timestamp() OR e.backend_pid NOT IN (SELECT a.pid FROM pg_stat_activity a))
        AND NOT EXISTS (SELECT FROM outbox.lane l WHERE l.epoch = e.epoch AND l.owner = e.owner)
    FOR UPDATE SKIP LOCKED)

-- name: renew
-- Extend the lease, and state which change of topics the relay publishes by, which topics do not follow it yet, and whether it
-- lacks Kafka; no row: it has ended, and every lane of it is taken.
UPDATE outbox.lease SET leased_until = clock_timestamp() + make_interval(secs => %(lease)s), topics_seen = %(topics_seen)s,
    topics_behind = %(topics_behind)s::text[], lacks_kafka = %(lacks_kafka)s
WHERE epoch = %(epoch)s AND owner = %(owner)s

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

-- name: give_back
-- Give lanes back that are settled, and keep the lease. A lane without an owner has been given back: all that Kafka may
-- have of it has a publication, or a position up to doubted_until. A row that another session holds stays for later.
UPDATE outbox.lane f SET owner = NULL, doubted_until = greatest(f.doubted_until, d.until)
FROM unnest(%(lanes)s::smallint[], %(until)s::bigint[]) d (lane, until)
WHERE d.lane = f.lane
    AND f.lane IN (SELECT l.lane FROM outbox.lane l
                   WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s AND l.lane = ANY (%(lanes)s::smallint[])
                   FOR NO KEY UPDATE SKIP LOCKED)
RETURNING f.lane

-- name: release
-- Give the lanes back on a clean stop, so that the next relay need not wait. Without its lease a relay owns nothing; the
-- owner's name only stays in a lane whose row somebody holds, since a stop waits for nobody. An epoch without a lease has
-- given its lanes back: all that Kafka may have of them has a publication, or a position up to doubted_until. Where that
-- could not be written, the lease ends, and stays; so does a lease whose row somebody holds, until it runs out.
WITH mine AS MATERIALIZED (
    SELECT e.epoch FROM outbox.lease e WHERE e.epoch = %(epoch)s AND e.owner = %(owner)s FOR UPDATE SKIP LOCKED
), freed AS (
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
    WHERE epoch IN (SELECT m.epoch FROM mine m) AND EXISTS (SELECT FROM unwritten)
)
DELETE FROM outbox.lease
WHERE epoch IN (SELECT m.epoch FROM mine m) AND NOT EXISTS (SELECT FROM unwritten)

-- name: newest
-- The newest position: no message that was read by now has a higher one.
SELECT last_value FROM outbox.position
