-- The steps of dropping a day of the inbox, each of which may be the last before a crash.

-- name: may
-- Who owns the inbox, and whether this user may act as the owner.
SELECT pg_get_userbyid(c.relowner), current_user::text, pg_has_role(current_user, c.relowner, 'USAGE')
FROM pg_class c WHERE c.oid = 'outbox.inbox'::regclass;

-- name: only_one
-- One drop at a time in this database, until the session ends.
SELECT outbox.take_turn('inbox');

-- name: another_may
-- The next drop may begin. A session that is closed has its turn for a moment longer.
SELECT outbox.give_turn_back('inbox');

-- name: raise_floor
-- From here on messages of these groups that were born up to this day are set aside, unless their rows refuse them.
INSERT INTO outbox.inbox_floor (group_id, born_before)
SELECT g.id, %(day)s::date + 1 FROM unnest(%(groups)s::integer[]) g (id)
ON CONFLICT (group_id) DO UPDATE SET born_before = excluded.born_before, raised_at = clock_timestamp()
WHERE inbox_floor.born_before < excluded.born_before;

-- name: writers
-- Transactions that may insert into the inbox: PostgreSQL locks it before it takes the snapshot that reads the floor.
SELECT DISTINCT l.virtualtransaction
FROM pg_locks l
WHERE l.locktype = 'relation' AND l.relation = 'outbox.inbox'::regclass AND l.granted AND l.mode = 'RowExclusiveLock'
    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database());

-- name: in_the_way
-- The session that has had a lock on one of these tables for the longest time, to name it.
SELECT format('pid %%s, %%s, open since %%s', a.pid, coalesce(nullif(a.application_name, ''), a.usename),
              date_trunc('second', a.xact_start))
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    AND l.relation IN ('outbox.inbox'::regclass, to_regclass(%(table)s)) AND l.granted AND l.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 1;

-- name: lock_timeout
-- How long the next statements wait for a lock, in milliseconds.
SELECT set_config('lock_timeout', %(milliseconds)s, false);

-- name: lock_day
-- No session writes to this day any more. Consumers that work on other days do not need this lock.
LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE;

-- name: empty
-- The rows of the day go, and their space.
TRUNCATE TABLE {table};

-- name: lock_partitions
-- No session makes a partition of the inbox.
LOCK TABLE outbox.inbox_partition_lock IN SHARE UPDATE EXCLUSIVE MODE;

-- name: lock_inbox
-- No consumer takes a message over: for as short as it takes to remove an empty table, and not before all transactions that use
-- the inbox have ended.
LOCK TABLE ONLY outbox.inbox IN ACCESS EXCLUSIVE MODE;

-- name: has_rows
-- Whether a consumer has written to the day since it was emptied.
SELECT EXISTS (SELECT FROM outbox.inbox i WHERE i.born_on = %(day)s);

-- name: remove
-- The empty table goes.
DROP TABLE {table};
