-- The sweep: a safety net under the finder.

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
