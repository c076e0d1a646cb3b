-- How a consumer group takes a message over, and parks what it failed with. See outbox/inbox/plans.py for the order of the
-- statements, and tests/support/models/inbox_model.py for why it is this one.

-- name: take
-- Takes a message over: $1 group, $2 message id, $3 day of birth, $4 topic, $5 partition, $6 offset, $7 digest,
-- $8 order key, $9 whether a listener runs in the transaction: it has no limit of its waits then, see outbox/inbox/sessions.py.
-- Waits for a transaction that has inserted the same row and has not ended. Returns the transaction, whether
-- the row was inserted, and whether the key is held; its row is then locked, so that it is not released meanwhile. The held
-- key is read only after the row was inserted: the order of locks is the same in all transactions. Then whether the row
-- proves nothing, because the group's rows of that day may have been dropped before. The day 1970-01-01 is in the DEFAULT
-- partition, which is never dropped; and whether the group was deleted. PostgreSQL locks outbox.inbox before it takes the snapshot that reads the floor.
WITH taken AS (
    INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
    VALUES ($1::integer, $2::uuid, $3::date, $4::integer, $5::integer, $6::bigint, $7::bytea)
    ON CONFLICT DO NOTHING
    RETURNING 1
), held AS (
    SELECT FROM outbox.inbox_held_key h
    WHERE h.group_id = $1::integer AND h.topic_id = $4::integer AND h.order_key = $8::bytea
        AND EXISTS (SELECT FROM taken)
    FOR UPDATE
)
SELECT pg_catalog.pg_current_xact_id()::text, EXISTS (SELECT FROM taken), EXISTS (SELECT FROM held),
    EXISTS (SELECT FROM outbox.inbox_floor f
            WHERE f.group_id = $1::integer AND f.born_before > $3::date AND $3::date <> '1970-01-01'),
    EXISTS (SELECT FROM outbox.deleted_consumer_group d WHERE d.id = $1::integer),
    CASE WHEN $9::boolean THEN pg_catalog.set_config('lock_timeout', '0', true) END;

-- name: take_batch
-- Takes messages of a group ($1) over: $2 message ids, $3 days of birth, $4 topics, $5 partitions, $6 offsets, $7 digests, all
-- sorted by id and day, no id twice; $8 as $9 of `take`, for which the rows are sorted: PostgreSQL sets it behind the last one. The rows are inserted in this order, so two batches that have messages in common do not
-- deadlock: one of them waits at the first of these. One that `take` would find too old is left out: it is handled alone.
-- Returns the rows that were inserted, with the transaction.
WITH taken AS (
    INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
    SELECT $1::integer, m.message_id, m.born_on, m.topic_id, m.part, m.off, m.digest
    FROM unnest($2::uuid[], $3::date[], $4::integer[], $5::integer[], $6::bigint[], $7::bytea[])
        WITH ORDINALITY m (message_id, born_on, topic_id, part, off, digest, place)
    WHERE NOT EXISTS (
        SELECT FROM outbox.inbox_floor f
        WHERE f.group_id = $1::integer AND f.born_before > m.born_on AND m.born_on <> '1970-01-01'
    ) AND NOT EXISTS (SELECT FROM outbox.deleted_consumer_group d WHERE d.id = $1::integer)
    ORDER BY m.place
    ON CONFLICT DO NOTHING
    RETURNING message_id, born_on
)
SELECT t.message_id, t.born_on, pg_catalog.pg_current_xact_id()::text,
    CASE WHEN $8::boolean THEN pg_catalog.set_config('lock_timeout', '0', true) END
FROM taken t
ORDER BY t.message_id, t.born_on;

-- name: known_batch
-- `known` for messages that were refused (by their places from 1; $1 group, $2 ids, $3 days of birth, $4 digests, $5 topics). One
-- without a row is too old. In a statement after `take_batch`, which has waited for the transactions of these rows.
SELECT m.place, i.digest = m.digest AND NOT EXISTS (
    SELECT FROM outbox.inbox_topic a JOIN outbox.inbox_topic b ON a.name <> b.name
        AND pg_catalog.split_part(a.kafka_id, '/', 1) = pg_catalog.split_part(b.kafka_id, '/', 1)
    WHERE a.id = i.topic_id AND b.id = m.topic_id)
FROM unnest($2::uuid[], $3::date[], $4::bytea[], $5::integer[]) WITH ORDINALITY m (message_id, born_on, digest, topic_id, place)
CROSS JOIN LATERAL (
    SELECT i.digest, i.topic_id FROM outbox.inbox i
    WHERE i.group_id = $1::integer AND i.message_id = m.message_id AND i.born_on = m.born_on
    LIMIT 1
) i;

-- name: held_keys
-- Which keys (by their places from 1; $1 group, $2 topics, $3 order keys) are held. Nothing is locked, so a message of a held
-- key is only taken out of its batch here: it is parked by `take` and `park`, or run, if the key was released meanwhile.
SELECT m.place
FROM unnest($2::integer[], $3::bytea[]) WITH ORDINALITY m (topic_id, order_key, place)
CROSS JOIN LATERAL (
    SELECT FROM outbox.inbox_held_key h
    WHERE h.group_id = $1::integer AND h.topic_id = m.topic_id AND h.order_key = m.order_key
    LIMIT 1
) h;

-- name: known
-- Whether the row that refused a message is its own, by digest ($4) and topic ($5). A topic of the same name was made again, and
-- one of another cluster mirrors it. Another topic of the same cluster has a copy: a record with the headers of this one.
SELECT i.digest = $4::bytea AND NOT EXISTS (
    SELECT FROM outbox.inbox_topic a JOIN outbox.inbox_topic b ON a.name <> b.name
        AND pg_catalog.split_part(a.kafka_id, '/', 1) = pg_catalog.split_part(b.kafka_id, '/', 1)
    WHERE a.id = i.topic_id AND b.id = $5::integer)
FROM outbox.inbox i
WHERE i.group_id = $1::integer AND i.message_id = $2::uuid AND i.born_on = $3::date;

-- name: hold
-- Holds a key ($1 group, $2 topic, $3 order key) and locks its row; returns whether it is held by this statement only.
INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key)
VALUES ($1::integer, $2::integer, $3::bytea)
ON CONFLICT (group_id, topic_id, order_key) DO UPDATE SET since = inbox_held_key.since
RETURNING xmax = 0;

-- name: park
-- Parks a message, once. A retry is due after $16 seconds. Any other conflict is an error: two messages at the head of one
-- key, for example, if its held key was deleted by hand. The transaction then takes nothing over. The run has ended, so its count is removed.
WITH ended AS (
    DELETE FROM outbox.inbox_run r
    WHERE r.group_id = $1::integer AND r.topic_id = $4::integer AND r.part = $5::integer AND r.off = $6::bigint
)
INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key, key, body,
    header_names, header_values, published_at, state, attempts, due_at, fingerprint, error, failed_at, undecided)
VALUES ($1::integer, $2::uuid, $3::date, $4::integer, $5::integer, $6::bigint, $7::bytea, $8::bytea, $9::bytea, $10::bytea,
    $11::text[], $12::bytea[], pg_catalog.to_timestamp($13::float8 / 1000::float8), $14::text, $15::integer,
    CASE WHEN $14::text = 'retry' THEN pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $16::float8) END,
    $17::text, $18::text, CASE WHEN $18::text IS NOT NULL THEN pg_catalog.clock_timestamp() END, $19::boolean)
ON CONFLICT ON CONSTRAINT inbox_parked_once DO NOTHING
RETURNING id;

-- name: park_followers
-- Parks messages of one held key behind it, in the order of the arrays: $1 group, $2 topic, $3 order key, $4 message ids, $5 days
-- of birth, $6 partitions, $7 offsets, $8 digests, $9 keys, $10 bodies, $11 times in milliseconds; $12 and $13 are the names and
-- values of all headers, of which a message has those from place $14 to $15; $16 fingerprint. Ids are given in this order, too:
-- PostgreSQL computes them after it has sorted. One that is parked already stays as it is, as in `park`.
INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key, key, body,
    header_names, header_values, published_at, state, attempts, fingerprint)
SELECT $1::integer, m.message_id, m.born_on, $2::integer, m.part, m.off, m.digest, $3::bytea, m.key, m.body,
    ($12::text[])[m.first_header:m.last_header], ($13::bytea[])[m.first_header:m.last_header],
    pg_catalog.to_timestamp(m.published / 1000::float8), 'waiting', 0, $16::text
FROM unnest($4::uuid[], $5::date[], $6::integer[], $7::bigint[], $8::bytea[], $9::bytea[], $10::bytea[], $11::float8[],
    $14::integer[], $15::integer[]) WITH ORDINALITY
    m (message_id, born_on, part, off, digest, key, body, published, first_header, last_header, place)
ORDER BY m.place
ON CONFLICT ON CONSTRAINT inbox_parked_once DO NOTHING;

-- name: is_committed
-- Whether a transaction is committed. One that this server has not had yet is not.
SELECT CASE WHEN $1::xid8 < pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot()) THEN pg_catalog.pg_xact_status($1::xid8) = 'committed'
            ELSE false END;

-- name: next_due
-- Locks and returns the retry of a group that has been due for the longest time, unless others have all of them. Of an order
-- key only the first message is a retry, so SKIP LOCKED cannot hand out the second one. The row is dead from here on until
-- this transaction deletes it or is rolled back: a listener that commits by itself commits a dead letter ($2 fingerprint).
-- A retry whose run has begun in a process other than $4, and has not ended there, is found only if $3; the last column is whether it is
-- one. The listener's waits for locks have no limit. statement_timestamp is stable, so the index ends the search at the first row that is not due.
-- The search begins at $5 (microseconds since 1970), the time of the last one that was found: a held snapshot keeps all that were before it in the index.
-- $6 are topics that are paused; one that is not of $7, and that other members read, is theirs. NULL: all are ours.
WITH due AS MATERIALIZED (
    SELECT p.id, p.due_at FROM outbox.inbox_parked p
    WHERE p.group_id = $1::integer AND p.state = 'retry' AND p.due_at <= pg_catalog.statement_timestamp()
        AND p.due_at >= pg_catalog.to_timestamp($5::float8 / 1000000::float8)
        AND p.topic_id NOT IN (
            SELECT a.id FROM outbox.inbox_topic a
            WHERE a.name = ANY ($6::text[]) OR a.name <> ALL ($7::text[]) AND EXISTS (
                SELECT FROM outbox.consumer_group g WHERE g.id = $1::integer AND g.subscription ? a.name))
        AND ($3::boolean OR (
            SELECT r.member <> $4::text FROM outbox.inbox_run r
            WHERE r.group_id = p.group_id AND r.topic_id = p.topic_id AND r.part = p.part AND r.off = p.off
        ) IS NOT TRUE)
    ORDER BY p.due_at
    LIMIT 1
    FOR UPDATE OF p SKIP LOCKED
)
UPDATE outbox.inbox_parked p
SET state = 'dead', due_at = NULL, attempts = p.attempts + 1, fingerprint = $2::text, error = $2::text,
    failed_at = pg_catalog.clock_timestamp()
FROM due, outbox.inbox_topic t
WHERE p.id = due.id AND t.id = p.topic_id
RETURNING p.id, p.message_id, p.born_on, p.topic_id, t.name, p.part, p.off, p.digest, p.order_key, p.key, p.body,
    p.header_names, p.header_values, (extract(epoch FROM p.published_at) * 1000::numeric)::bigint, p.attempts - 1,
    pg_catalog.pg_current_xact_id()::text, p.undecided, pg_catalog.set_config('lock_timeout', '0', true), (extract(epoch FROM due.due_at) * 1000000::numeric)::bigint,
    (SELECT r.member <> $4::text FROM outbox.inbox_run r
     WHERE r.group_id = p.group_id AND r.topic_id = p.topic_id AND r.part = p.part AND r.off = p.off) IS TRUE;

-- name: before_retry
-- What the listener of a retry writes is taken back to here, without a moment in which the row is due and unlocked.
SAVEPOINT outbox_retry;

-- name: take_back
-- Takes back what the listener of a retry wrote; the row stays locked, and dead. An error if the listener ended the transaction.
ROLLBACK TO SAVEPOINT outbox_retry;

-- name: lock_again
-- Locks the row of a retry ($1 id, $2 attempts before, $3 transaction) that its listener discarded: in that transaction it has
-- the row already. In a new one, because the listener ended it: nothing if the row is in other hands meanwhile.
SELECT p.id FROM outbox.inbox_parked p
WHERE p.id = $1::bigint
    AND CASE WHEN pg_catalog.pg_current_xact_id_if_assigned() = $3::xid8 THEN p.attempts = $2::integer + 1 AND p.state = 'dead'
             ELSE p.attempts = $2::integer AND p.state = 'retry' END
FOR UPDATE SKIP LOCKED;

-- name: lock_held_key
-- Locks the held key of a parked message, before it is taken out: whoever parks a message behind it waits. Returns the isolation
-- level, and whether the key is held. Nothing is locked in a transaction that keeps its snapshot: it would not see what was
-- parked while it waited.
WITH held AS (
    SELECT FROM outbox.inbox_held_key h
    WHERE h.group_id = $1::integer AND h.topic_id = $2::integer AND h.order_key = $3::bytea
        AND pg_catalog.current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
    FOR UPDATE
)
SELECT pg_catalog.current_setting('transaction_isolation'), EXISTS (SELECT FROM held);

-- name: take_out
-- Deletes a parked message, in the transaction of its effect, and the count of its run.
WITH ended AS (
    DELETE FROM outbox.inbox_run r USING outbox.inbox_parked p
    WHERE p.id = $1::bigint AND r.group_id = p.group_id AND r.topic_id = p.topic_id AND r.part = p.part AND r.off = p.off
)
DELETE FROM outbox.inbox_parked WHERE id = $1::bigint RETURNING id;

-- name: check_constraints
-- Checks what a commit would check, while the row of a retry is locked. Its message is taken out, so no copy of it is sent.
SET CONSTRAINTS ALL IMMEDIATE;

-- name: follow
-- Makes the first message that waits behind a key the next retry; returns it, if there is one. One that is not waiting stays
-- as it is. $4 is the message that was in front: what a held snapshot keeps of those before it in the index is not read.
UPDATE outbox.inbox_parked
SET state = CASE WHEN state = 'waiting' THEN 'retry' ELSE state END,
    due_at = CASE WHEN state = 'waiting' THEN pg_catalog.clock_timestamp() ELSE due_at END
WHERE id = (
    SELECT p.id FROM outbox.inbox_parked p
    WHERE p.group_id = $1::integer AND p.topic_id = $2::integer AND p.order_key = $3::bytea AND p.id > $4::bigint
    ORDER BY p.id
    LIMIT 1
)
RETURNING id;

-- name: let_go
-- Releases a key: nothing is parked behind it.
DELETE FROM outbox.inbox_held_key
WHERE group_id = $1::integer AND topic_id = $2::integer AND order_key = $3::bytea
RETURNING 1;

-- name: failed_again
-- Counts a failed retry ($1 id, $2 attempts before), and schedules the next one in $3 seconds, or none: then it is dead. In the
-- transaction that ran it ($6) the row is dead and counted since `next_due`. In a new one nothing is returned if somebody else
-- has dealt with it. The run has ended, so its count is removed.
WITH ended AS (
    DELETE FROM outbox.inbox_run r USING outbox.inbox_parked p
    WHERE p.id = $1::bigint AND r.group_id = p.group_id AND r.topic_id = p.topic_id AND r.part = p.part AND r.off = p.off
)
UPDATE outbox.inbox_parked
SET attempts = $2::integer + 1,
    state = CASE WHEN $3::float8 IS NULL THEN 'dead' ELSE 'retry' END,
    due_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3::float8),
    fingerprint = $4::text, error = $5::text, failed_at = pg_catalog.clock_timestamp()
WHERE id = $1::bigint
    AND CASE WHEN pg_catalog.pg_current_xact_id_if_assigned() = $6::xid8 THEN attempts = $2::integer + 1 AND state = 'dead'
             ELSE attempts = $2::integer AND state = 'retry' END
RETURNING state;

-- name: died
-- The state of a retry ($1 id, $2 attempts before) that its listener made a dead letter, because it committed its transaction.
SELECT p.state FROM outbox.inbox_parked p
WHERE p.id = $1::bigint AND p.attempts = $2::integer + 1 AND p.state = 'dead';

-- name: postpone
-- Tries a retry ($1, $3 attempts before) again in $2 seconds, without counting an attempt: PostgreSQL was to blame. One that
-- somebody else has dealt with meanwhile is left alone. The run has ended, so its count is removed.
WITH ended AS (
    DELETE FROM outbox.inbox_run r USING outbox.inbox_parked p
    WHERE p.id = $1::bigint AND r.group_id = p.group_id AND r.topic_id = p.topic_id AND r.part = p.part AND r.off = p.off
        AND p.attempts = $3::integer AND p.state = 'retry'
)
UPDATE outbox.inbox_parked SET due_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $2::float8)
WHERE id = $1::bigint AND attempts = $3::integer AND state = 'retry'
RETURNING id;

-- name: keep_role
-- Notes the role of this session, for `reset_role`.
SELECT pg_catalog.set_config('outbox.session_role', pg_catalog.current_setting('role'), false);

-- name: reset_role
-- Takes back a role that a listener has set: the consumer's own statements would be the role's. Also for later transactions.
SELECT pg_catalog.set_config('role', k.role, false)
FROM (SELECT coalesce(nullif(pg_catalog.current_setting('outbox.session_role', true), ''), 'none') AS role) k
WHERE k.role <> pg_catalog.current_setting('role');

-- name: require_transaction
-- The last statement before a commit: the transaction is still the one that took the message over.
SELECT outbox.require_transaction($1::xid8);

-- name: require_same_transaction
-- The same in front of a commit; the function is called only if it is to raise.
SELECT outbox.require_transaction($1::xid8) WHERE pg_catalog.pg_current_xact_id_if_assigned() IS DISTINCT FROM $1::xid8;

-- name: apply_policies
-- Lets the policies of outbox choose the rows of this session, whatever its role or database sets: with row_security = off each
-- statement of a consumer would be an error. A member whose group is hidden by them is refused when it registers.
SELECT pg_catalog.set_config('row_security', 'on', false) WHERE pg_catalog.current_setting('row_security') = 'off';

-- name: notice_dead_clients
-- Ends the session about ten seconds after the client's host has fallen silent, so that its rows are free: the system probes an idle
-- connection, and PostgreSQL looks at it while a statement runs. PostgreSQL on Windows cannot look.
SELECT pg_catalog.set_config('tcp_keepalives_idle', '4', false), pg_catalog.set_config('tcp_keepalives_interval', '2', false),
    pg_catalog.set_config('tcp_keepalives_count', '3', false),
    CASE WHEN pg_catalog.lower(pg_catalog.version()) NOT LIKE ALL (ARRAY['%visual c%', '%windows%', '%mingw%'])
         THEN pg_catalog.set_config('client_connection_check_interval', '2000', false) END;

-- name: await_commits
-- Lets commits of this session return only when they are on disk. What waits for standbys, too, stays as it is.
SELECT pg_catalog.set_config('synchronous_commit', 'on', false) WHERE pg_catalog.current_setting('synchronous_commit') = 'off';
