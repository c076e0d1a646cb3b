-- The business side of `outbox prove`, in the database that it makes for itself and drops.

-- name: create
-- One row per order key, whose lock gives the messages of the key the numbers 1, 2, 3 …; what became of transactions that
-- the checker is to ask about; what the inbox's listener has done.
CREATE SCHEMA prove;
CREATE TABLE prove.item (key text PRIMARY KEY, counter integer NOT NULL);
CREATE TABLE prove.outcome (id text PRIMARY KEY, is_kept boolean NOT NULL);
CREATE TABLE prove.applied (
    number     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    message_id uuid NOT NULL
);

-- name: advance
-- Lock the row of a key until the end of the transaction, and count.
INSERT INTO prove.item AS i (key, counter) VALUES (%(key)s, 1)
ON CONFLICT (key) DO UPDATE SET counter = i.counter + 1
RETURNING counter

-- name: note_outcome
-- The local transaction of a half message that is left to the checker.
INSERT INTO prove.outcome (id, is_kept) VALUES (%(id)s, %(is_kept)s)

-- name: ask
-- What the checker asks about each.
SELECT is_kept FROM prove.outcome WHERE id = %(biz_id)s

-- name: apply
-- The effect of a message.
INSERT INTO prove.applied (message_id) VALUES (%(message_id)s)

-- name: applied
-- All effects, in the order of their commits: those of one key never overlap.
SELECT message_id::text FROM prove.applied ORDER BY number

-- name: applied_count
-- How many there are.
SELECT count(*) FROM prove.applied

-- name: places
-- Where PostgreSQL records each message as published.
SELECT message_id::text, topic, partition, "offset" FROM outbox.message_status WHERE status = 'PUBLISHED'

-- name: is_open
-- Whether something is still to be published, or to be decided by the checker.
SELECT EXISTS (SELECT FROM outbox.message_status WHERE status = 'COMMITTED')
    OR EXISTS (
        SELECT FROM outbox.message m JOIN prove.outcome o ON o.id = m.biz_id WHERE m.state = 'UNKNOWN'
    )

-- name: sessions
-- The sessions of processes of the run, which may be ended: all of this database but our own.
SELECT pid, application_name FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
ORDER BY pid

-- name: disconnect
-- End one, and wait until it is gone.
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE pid = %(pid)s AND datname = current_database() AND pid <> pg_backend_pid()

-- name: identity
-- What a relay's group in Kafka is named after.
SELECT (SELECT system_identifier::text FROM pg_control_system()),
       (SELECT oid::text FROM pg_database WHERE datname = current_database())

-- name: may_create
-- Whether this role may create a database.
SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user

-- name: roles
-- The roles that exist: migrations add ours, which belong to the whole cluster.
SELECT rolname FROM pg_roles WHERE rolname LIKE 'outbox\_%'

-- name: databases
-- What runs have made: the note on it, and whether one is still there.
SELECT d.datname, pg_catalog.shobj_description(d.oid, 'pg_database'),
       EXISTS (SELECT FROM pg_stat_activity a WHERE a.datname = d.datname AND a.application_name = 'outbox prove')
FROM pg_database d WHERE d.datname LIKE 'outbox\_prove\_%' ORDER BY d.datname

-- name: relays
-- The relays that run for the outbox of the database that was named.
SELECT count(*) FROM outbox.lease WHERE leased_until > clock_timestamp()
