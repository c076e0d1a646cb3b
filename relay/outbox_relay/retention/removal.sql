-- The steps of letting a range go, each of which may be the last before a crash.

-- name: only_one
-- One removal at a time in this database, until the next statement or the end of the session.
SELECT outbox.take_turn('history')

-- name: another_may
-- The next removal may begin. A session that is closed has its turn for a moment longer.
SELECT outbox.give_turn_back('history')

-- name: may
-- Who owns the tables, whether this user may act as the owner, and whether somebody has added a DEFAULT partition.
SELECT pg_get_userbyid(c.relowner), current_user::text, pg_has_role(current_user, c.relowner, 'USAGE'),
       EXISTS (SELECT FROM pg_partitioned_table t
               WHERE t.partrelid IN (c.oid, 'outbox.publication'::regclass, 'outbox.event'::regclass)
                   AND t.partdefid <> 0)
FROM pg_class c WHERE c.oid = 'outbox.message'::regclass

-- name: lock_timeout
-- How long the next steps wait for a lock, in milliseconds.
SELECT set_config('lock_timeout', %(milliseconds)s, false)

-- name: mark
-- Say on the table of messages that its range is leaving, and where it ends. NULL: it stays.
COMMENT ON TABLE {table} IS {mark}

-- name: detach
-- First transaction: the partition is marked as leaving, under SHARE UPDATE EXCLUSIVE, beside which inserts go on. Then
-- it waits, holding nothing, for all transactions that use the parent. Second transaction: ACCESS EXCLUSIVE on the
-- partition alone, which nobody sees through its parent any more.
ALTER TABLE {parent} DETACH PARTITION {table} CONCURRENTLY

-- name: finalize
-- The second transaction of a detach that did not come to its end.
ALTER TABLE {parent} DETACH PARTITION {table} FINALIZE

-- name: lock
-- Nobody writes to these tables any more, and everybody may go on reading them.
LOCK TABLE {message}, {publication}, {event} IN SHARE MODE

-- name: drop
-- All three at once.
DROP TABLE {message}, {publication}, {event}

-- name: attach
-- Back to its parent, with the constraint that the detach left, so that the rows need not be read.
ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM ({lower}) TO ({upper})

-- name: left_constraints
-- Constraints that a detach has left on a partition: its bounds, once more.
SELECT k.conname FROM pg_constraint k
WHERE k.conrelid = %(table)s::regclass AND k.contype = 'c' AND k.coninhcount = 0

-- name: drop_constraint
-- What the detach has left is of no further use.
ALTER TABLE {table} DROP CONSTRAINT {constraint}

-- name: in_the_way
-- The transaction that holds a lock on one of these tables for the longest time, to tell who is waited for.
SELECT format('pid %%s, %%s, open since %%s', a.pid, coalesce(nullif(a.application_name, ''), a.usename),
              date_trunc('second', a.xact_start))
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.relation IN (to_regclass(%(parent)s), to_regclass(%(table)s)) AND l.granted AND l.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 1
