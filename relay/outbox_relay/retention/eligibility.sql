-- May a range of ids be dropped? Its tables are named, not reached through their parents, so that the answer is the
-- same before, while and after they are detached. {message}, {publication} and {event} are filled in by eligibility.py.

-- name: settings
-- Deciding is in no hurry: it takes no parallel workers from the business, and compiles nothing.
SELECT set_config('max_parallel_workers_per_gather', '0', false), set_config('jit', 'off', false)

-- name: newest
-- The newest position given out. It is read before "ahead", in a statement of its own.
SELECT last_value FROM outbox.position

-- name: ahead
-- An xid above all that were given out before. Taken, not read from a snapshot: that ends at the newest transaction that has
-- ended, and one that still runs may have a higher xid.
SELECT pg_current_xact_id()::text::bigint

-- name: closed
-- Whether every transaction that could still insert into the range has ended. A position is taken by a transaction that
-- has its xid already, so whoever took one below "upper" has an xid below "ahead", which was taken when the sequence was
-- past "upper". So it has below the xid of any publication of a later position: that began when the position had been
-- given out, and is known to be older. Told besides: the oldest xid that runs, and who it is, as far as one may see.
SELECT o.xmin >= least(%(ahead)s, (SELECT b.xid::text::bigint FROM outbox.publication b
                                   WHERE b.lo >= %(upper)s LIMIT 1)),
       o.xmin,
       coalesce((SELECT format('pid %%s, %%s, open since %%s', a.pid, coalesce(nullif(a.application_name, ''), a.usename),
                               date_trunc('second', a.xact_start))
                 FROM pg_stat_activity a WHERE a.backend_xid = o.xmin::text::xid8::xid LIMIT 1),
                (SELECT format('prepared transaction %%L', p.gid) FROM pg_prepared_xacts p
                 WHERE p.transaction = o.xmin::text::xid8::xid LIMIT 1))
FROM (SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin) o

-- name: is_young
-- Whether its newest row is younger than the retention: a cheap first look.
SELECT (SELECT m.born_at FROM {message} m ORDER BY m.id DESC LIMIT 1) > clock_timestamp() - %(age)s::interval

-- name: unsettled
-- What is not final: by state (an index has them), what waits, and what a checker is asking about at this moment.
SELECT count(*) FILTER (WHERE m.state IN ('UNKNOWN', 'EXHAUSTED')), count(*) FILTER (WHERE m.state = 'DEAD'),
       (SELECT count(*) FROM outbox.waiting w WHERE (w.id >= %(lower)s AND w.id < %(upper)s)
           OR (w.place >= %(lower)s AND w.place < %(upper)s)),
       (SELECT count(*) FROM outbox.pending_check c WHERE c.id >= %(lower)s AND c.id < %(upper)s
            AND c.asked_by IS NOT NULL AND c.due_at > clock_timestamp())
FROM {message} m WHERE m.state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD')

-- name: facts
-- One walk over each table: rows, the lowest and the highest xid, the last change and whether it is younger than the
-- retention, and the highest position that was committed.
SELECT m.rows, least(m.first, p.first, e.first), greatest(m.last, p.last, e.last),
       greatest(m.at, p.at, e.at), coalesce(greatest(m.at, p.at, e.at) > clock_timestamp() - %(age)s::interval, false),
       m.position
FROM (SELECT count(*) AS rows, min(xid::text::bigint) AS first, max(xid::text::bigint) AS last,
             max(greatest(born_at, decided_at)) AS at, max(position) FILTER (WHERE state = 'COMMITTED') AS position
      FROM {message}) m,
     (SELECT min(xid::text::bigint) AS first, max(xid::text::bigint) AS last, max(published_at) AS at
      FROM {publication}) p,
     (SELECT min(xid::text::bigint) AS first, max(xid::text::bigint) AS last, max(happened_at) AS at
      FROM {event}) e

-- name: published
-- COMMITTED messages without a publication, and the lowest and highest xid of the publications of the others. A half
-- message has its position from its decision, so its publication may lie in a later partition.
SELECT count(*) FILTER (WHERE p.position IS NULL), min(m.id) FILTER (WHERE p.position IS NULL), min(p.xid), max(p.xid)
FROM {message} m
LEFT JOIN (
    SELECT unnest(b.positions) AS position, b.xid::text::bigint AS xid FROM {publication} b
    UNION ALL
    SELECT unnest(b.positions), b.xid::text::bigint FROM outbox.publication b
    WHERE b.lo >= %(upper)s AND b.lo <= %(position)s
) p ON p.position = m.position
WHERE m.state = 'COMMITTED'

-- name: gaps
-- Which xids of a span no certificate of the target covers, on this timeline of this cluster, in this database. A
-- certificate counts if it is of the warehouse that the newest one names (another one may have been at the same place), and if it saw the range: one that was detached
-- then was neither exported nor compared. A verification that found problems takes back what earlier ones found good, until
-- a later one finds it good again. Earlier and later by xid: on one timeline of a cluster no xid is given out twice, a clock
-- may be set back. Told with each gap: the problems, and whether one took back everything.
-- Why the timeline: a promoted standby may lack what a verification read on the lost primary, and gives its xids out
-- again. The server that writes a certificate sees that it is the one that was verified (a connection can lead from the
-- lost primary to the new one half-way), so what is found here of an older timeline was true; but the warehouse cannot
-- be continued until a rebase takes it all back, and until then nothing is dropped by it. A promotion during a drop
-- changes nothing: this session, its detached tables and this answer are of one server, which keeps its timeline as long
-- as it runs; what the new primary finds half detached, its next drop decides by its own timeline, and puts back.
WITH here AS (
    SELECT s.system_identifier, d.oid::bigint AS database,
           ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS timeline
    FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
), mine AS (
    SELECT m.* FROM outbox.certificate m JOIN here USING (system_identifier, timeline, database)
    WHERE m.target = %(target)s
), c AS (
    SELECT int8range(window_lo::text::bigint, window_hi::text::bigint) AS xids, problems, xid, held,
           warehouse = (SELECT n.warehouse FROM mine n ORDER BY n.xid DESC LIMIT 1) AS is_there
    FROM mine
    WHERE int8range(window_lo::text::bigint, window_hi::text::bigint) && int8range(%(first)s, %(last)s, '[]')
), good AS (
    SELECT unnest(int8multirange(g.xids) - coalesce(
        (SELECT range_agg(b.xids) FROM c b WHERE b.problems > 0 AND b.xid >= g.xid), '{{}}')) AS xids
    FROM c g WHERE g.problems = 0 AND g.is_there AND g.held @> int8range(%(lower)s, %(upper)s)
), gap AS (
    SELECT unnest(int8multirange(int8range(%(first)s, %(last)s, '[]'))
                  - coalesce((SELECT range_agg(g.xids) FROM good g), '{{}}')) AS xids
)
SELECT lower(g.xids), upper(g.xids), (SELECT max(c.problems) FROM c WHERE c.problems > 0 AND c.xids && g.xids),
       (SELECT coalesce(bool_or(c.problems > 0 AND upper(c.xids) = 9223372036854775807), false) FROM c
        WHERE c.xids && g.xids)
FROM gap g ORDER BY 1

-- name: evidence
-- What the newest certificate of the target that found no problem says, with the evidence that it names. Each verification
-- makes sure that the evidence before is still there, so the newest speaks for all.
SELECT m.checksum
FROM outbox.certificate m, pg_control_system() s, pg_database d
WHERE d.datname = current_database() AND m.target = %(target)s AND m.problems = 0
    AND m.system_identifier = s.system_identifier AND m.database = d.oid::bigint
    AND m.timeline = ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer
ORDER BY m.xid DESC LIMIT 1

-- name: targets
-- The targets that there are certificates of; of each the newest timeline of those of this cluster and database (null:
-- there are none), and whether any is of the present one, and that.
SELECT c.target, max(c.timeline) FILTER (WHERE c.is_here), bool_or(c.is_here AND c.timeline = c.present), c.present
FROM (
    SELECT e.target, e.timeline, e.system_identifier = s.system_identifier AND e.database = d.oid::bigint AS is_here,
           ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer AS present
    FROM outbox.certificate e, pg_control_system() s, pg_database d WHERE d.datname = current_database()
) c
GROUP BY c.target, c.present ORDER BY c.target

-- name: reaches
-- Into which later ranges the positions of a range's messages reach: there lie their publications.
SELECT r.lower, count(*)
FROM {message} m JOIN unnest(%(lowers)s::bigint[], %(uppers)s::bigint[]) r (lower, upper)
    ON m.position >= r.lower AND m.position < r.upper
WHERE m.position >= %(upper)s
GROUP BY r.lower
