-- How the library inserts messages. Never listed: xid, position, id, state. Their defaults are evaluated in
-- column order (the transaction id before the position), which the relay's finder depends on. The lane is said, as
-- outbox.lane_of has it: without it the table's trigger checks what the library has checked already.
--
-- The columns of a row stand in outbox/operations/rows.py. From there come {columns}: their names; {values}: their
-- parameters, as untyped text; {typed}: the same with their types; {arrays}: one array for each; {unnested}: what the arrays
-- hold, with its types. $topic is the parameter of that column, $+1 the first parameter behind those of the columns.
--
-- Locks are named by a 64-bit hash, with a seed per purpose, so that any language can take the same:
--   1: order key of a topic    hashtextextended(topic || ':' || encode(order_key, 'hex'), 1)
--   2: idempotency key         hashtextextended(producer_group || ':' || key, 2)

-- name: send
-- One message, one round trip.
INSERT INTO outbox.message ({columns}, lane)
VALUES ({values}, $+1)
RETURNING id, message_id;

-- name: send_with_message_id
-- The same with the application's own message id; a default cannot be asked for by a value, hence two statements. The lane
-- is left out: the table then looks whether another message has the id, whoever inserts.
INSERT INTO outbox.message ({columns}, message_id)
VALUES ({values}, $+1)
RETURNING id, message_id;

-- name: send_ordered
-- Waits for the lock of the order key ($+2, never null) and only then takes the position: the defaults are computed
-- in the projection above the scan of the materialized CTE, so after its only row, the lock, was produced. Until
-- this transaction ends nobody else takes a position for the key by way of this lock.
-- No row back: the transaction may hold as many locks as it is allowed to ($+3); nothing was written. The setting
-- counts them, as an upper bound: it ends with the transaction and goes back with a savepoint, as the locks do.
WITH counted AS MATERIALIZED (
    SELECT pg_catalog.set_config('outbox.ordered_keys', (1 + coalesce(nullif(pg_catalog.current_setting('outbox.ordered_keys', true), ''),
                                                           '0')::bigint)::text, true)::bigint AS keys
), locked AS MATERIALIZED (
    SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($topic::text || ':' || pg_catalog.encode($+2::bytea, 'hex'), 1))
    FROM counted WHERE keys <= $+3::bigint
)
INSERT INTO outbox.message ({columns}, lane)
SELECT {typed}, $+1::smallint
FROM locked
RETURNING id, message_id;

-- name: lock_order_keys
-- The locks of many messages at once ($1 topics, $2 order keys), in one order for all callers, so that two of them
-- do not wait for each other in a circle. It is a statement of its own and ends before the first position is taken.
-- No row back: no lock was taken, because the transaction would hold more than it may ($3), see send_ordered.
WITH wanted AS MATERIALIZED (
    SELECT DISTINCT pg_catalog.hashtextextended(topic || ':' || pg_catalog.encode(order_key, 'hex'), 1) AS lock
    FROM unnest($1::text[], $2::bytea[]) AS given (topic, order_key)
    ORDER BY lock
), counted AS MATERIALIZED (
    SELECT coalesce(nullif(pg_catalog.current_setting('outbox.ordered_keys', true), ''), '0')::bigint
           + (SELECT pg_catalog.count(*) FROM wanted) AS keys
), noted AS MATERIALIZED (
    SELECT pg_catalog.set_config('outbox.ordered_keys', keys::text, true) FROM counted WHERE keys <= $3::bigint
)
SELECT pg_catalog.pg_advisory_xact_lock(lock) FROM wanted, noted;

-- name: recount_order_keys
-- Counts the locks that this transaction holds beside those of the messages ($1 topics, $2 order keys): the setting has
-- counted a key again each time it was used. Advisory locks of the application are counted too; they take the same room.
SELECT pg_catalog.set_config('outbox.ordered_keys', pg_catalog.count(*)::text, true)
FROM pg_locks l
WHERE l.locktype = 'advisory' AND l.pid = pg_catalog.pg_backend_pid() AND NOT EXISTS (
    SELECT FROM (SELECT pg_catalog.hashtextextended(topic || ':' || pg_catalog.encode(order_key, 'hex'), 1) AS lock
                 FROM unnest($1::text[], $2::bytea[]) AS given (topic, order_key)) w
    WHERE l.objsubid = 1 AND (w.lock >> 32) & 4294967295 = l.classid::bigint AND w.lock & 4294967295 = l.objid::bigint
);

-- name: send_many
-- A chunk of messages in the order given: sorted before the defaults take positions. Arrays that would hold nothing
-- but NULL come empty; unnest fills them up.
INSERT INTO outbox.message ({columns}, lane)
SELECT {unnested}, lane::smallint
FROM unnest({arrays}, $+1::text[]) WITH ORDINALITY
     AS given ({columns}, lane, place)
ORDER BY place
RETURNING id, message_id;

-- name: send_many_with_message_id
-- The same with the application's own message ids, and without the lane, as in send_with_message_id.
INSERT INTO outbox.message ({columns}, message_id)
SELECT {unnested}, message_id::uuid
FROM unnest({arrays}, $+1::text[]) WITH ORDINALITY
     AS given ({columns}, message_id, place)
ORDER BY place
RETURNING id, message_id;

-- name: lock_idempotency_key
-- Lets one sender at a time decide whether the key ($1 group, $2 key) is new. It is a statement of its own: the next
-- one gets a snapshot taken after the wait, in which the first sender's row can be seen.
SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1::text || ':' || $2::text, 2));

-- name: send_once
-- Sends unless the key ($producer_group group, $+2 key) is known, and notes it with the digest ($+3) of what was sent. Returns the
-- one message, and the digest it was sent with if that was earlier. ON CONFLICT only matters above READ COMMITTED: a
-- row committed after this transaction's snapshot ends in a serialization failure, never in a second message.
WITH known AS MATERIALIZED (
    SELECT id, message_id, digest FROM outbox.idempotency WHERE producer_group = $producer_group::text AND key = $+2::text
), sent AS (
    INSERT INTO outbox.message ({columns}, lane)
    SELECT {typed}, $+1::smallint
    WHERE NOT EXISTS (SELECT FROM known)
    RETURNING id, message_id
), noted AS (
    INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id)
    SELECT $producer_group::text, $+2::text, $+3::bytea, id, message_id FROM sent
    ON CONFLICT DO NOTHING
    RETURNING id, message_id
)
SELECT id, message_id, NULL::bytea AS digest FROM noted
UNION ALL
SELECT id, message_id, digest FROM known;

-- name: refuse_unlocked_key
-- send_once answered nothing: somebody noted the key ($1 group, $2 key) without taking its lock, and committed while our
-- message was written. This fails on the primary key, so that the second message cannot be committed.
INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id)
VALUES ($1, $2, '', 0, pg_catalog.gen_random_uuid());
