-- What is done beside publishing: delayed messages fall due, partitions that hold nothing leave, and a sweep looks for what was lost.

-- name: next_due
-- Seconds until the next delayed message is due (a day at most, also when none waits), and before which time none
-- waits: the next look begins there. Entries of the index that were released stay in it while a snapshot is held, and would be
-- walked at every look.
-- The other reasons are named because the planner takes an unknown one to be rare: with reason = 'delayed', a plan made
-- while nothing waits reads all that waits, at every look.
SELECT extract(epoch FROM greatest(least(min(due_at), clock_timestamp() + interval '1 day'), '0001-01-01')
                          - clock_timestamp())::float8,
       least(min(due_at), clock_timestamp())::text
FROM outbox.waiting WHERE due_at >= %(since)s::timestamptz AND reason <> ALL ('{held,parked}')

-- name: release
-- Let due messages go: out of waiting, and with a new xid and position, as if they were committed now. One
-- statement, so that a message is either waiting or to be found, whatever dies. A message that somebody holds a
-- lock on (a cancellation under way) is left for the next look: the relay waits for nobody.
-- The state is read with the lock and not asked in the UPDATE, where it would lead the planner to another index.
WITH due AS MATERIALIZED (
    SELECT w.id, m.state FROM outbox.waiting w JOIN outbox.message m ON m.id = w.id
    WHERE w.reason = 'delayed' AND w.due_at >= %(since)s::timestamptz
        AND w.due_at <= statement_timestamp() AND m.lane = ANY (%(lanes)s::smallint[])
    ORDER BY w.due_at, w.id LIMIT 1000
    FOR NO KEY UPDATE OF m SKIP LOCKED FOR UPDATE OF w SKIP LOCKED
), released AS (
    DELETE FROM outbox.waiting w USING due WHERE w.id = due.id
    RETURNING w.id, due.state
)
UPDATE outbox.message m SET xid = pg_current_xact_id(), position = nextval('outbox.position')
FROM released WHERE m.id = released.id AND released.state = 'COMMITTED'

-- name: all
-- Every partition of outbox.message with its bounds, oldest first.
SELECT c.relname, p.lower, p.upper
FROM outbox.partition p JOIN pg_class c ON c.oid = p.name
ORDER BY p.lower

-- name: unsettled
-- Whether a partition holds anything that may still become COMMITTED, or is COMMITTED and not read: the oldest lane has not
-- seen its transaction end.
SELECT EXISTS (SELECT FROM {partition} WHERE state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD'))
    OR EXISTS (SELECT FROM {partition} WHERE state = 'COMMITTED' AND xid >= %(xmax)s::xid8)
    OR EXISTS (SELECT FROM {partition} WHERE state = 'COMMITTED' AND xid = ANY (%(xip)s::xid8[]))
    OR EXISTS (SELECT FROM outbox.waiting w WHERE w.id >= %(lower)s AND w.id < %(upper)s)
    -- A message of a parked key keeps its position, and so needs the partition of its publication.
    OR EXISTS (SELECT FROM outbox.waiting w WHERE w.place >= %(lower)s AND w.place < %(upper)s)

-- name: still_there
-- Which of these tables exist, whether they are partitions or not: one that is being dropped may still be put back.
SELECT c.relname FROM pg_class c
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (%(tables)s)

-- name: settings
-- The sweep is in no hurry: it takes no parallel workers from the business. After the first one it finds what is new by the
-- index on xid, in all partitions: most of them hold nothing new, and none may be read whole.
SELECT set_config('max_parallel_workers_per_gather', '0', false), set_config('enable_seqscan', %(seqscan)s, false)

-- name: lost
-- Messages that count as published by the recorded progress, and have no publication and do not wait. There are
-- none, unless a restore or a fail-over took publications away, or progress was changed by hand. Only what was
-- not visible in the previous sweep is looked at, so the work is in proportion to the traffic. That holds for publications,
-- too: a message has its xid before it is visible, and its publication is written later, with a higher one. A release, a
-- retry or a repair gives a message a new xid with its new position; both columns of a restore come from one cluster.
-- The partition of such a position was live at the previous sweep, whatever partition the message is in.
SELECT m.id, m.lane FROM outbox.message m
WHERE m.id >= %(lowest)s AND m.state = 'COMMITTED' AND m.lane = ANY (%(lanes)s::smallint[])
    AND m.xid < %(xmax)s::xid8 AND NOT m.xid = ANY (%(xip)s::xid8[])
    AND (m.xid >= %(since_xmax)s::xid8 OR m.xid = ANY (%(since_xip)s::xid8[]))
    AND NOT EXISTS (SELECT FROM (SELECT unnest(b.positions) AS position FROM outbox.publication b
                                 WHERE b.lo >= %(lowest_publication)s AND b.xid >= %(since_xmin)s::xid8) p WHERE p.position = m.position)
    AND NOT EXISTS (SELECT FROM outbox.waiting w WHERE w.id = m.id)
ORDER BY m.position
LIMIT %(most)s

-- name: repair
-- Let lost messages be found: a new xid and position, in the order that they had. The positions are taken in a step
-- of their own, because a join may turn the order round. Only in lanes of ours. (A plain state would lead the planner to the finder's index,
-- all of it.) A row
-- that another session holds is left to the next sweep.
WITH free AS MATERIALIZED (
    SELECT f.id FROM unnest(%(ids)s::bigint[]) u (id)
    CROSS JOIN LATERAL (SELECT m.id FROM outbox.message m WHERE m.id = u.id FOR NO KEY UPDATE SKIP LOCKED) f
), placed AS MATERIALIZED (
    SELECT o.id, nextval('outbox.position') AS position
    FROM (SELECT u.id FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY u (id, place) JOIN free f ON f.id = u.id
          WHERE pg_current_xact_id() IS NOT NULL ORDER BY u.place) o
)
UPDATE outbox.message m SET xid = pg_current_xact_id(), position = p.position
FROM placed p WHERE m.id = p.id AND m.state || '' = 'COMMITTED'
    AND m.lane IN (SELECT l.lane FROM outbox.lane l
                   WHERE l.epoch = %(epoch)s AND l.owner = %(owner)s FOR SHARE SKIP LOCKED)
