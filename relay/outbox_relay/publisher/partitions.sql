-- Which partitions can still hold something to publish.

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
