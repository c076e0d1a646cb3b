-- Messages that are received and acknowledged one by one, instead of being given to a listener: parked messages, each leased to
-- who has received it. See outbox/inbox/leases.py.

-- name: hold_all
-- Holds keys of a group ($1): $2 message ids, $3 days of birth, $4 order keys. Their rows of the inbox are this transaction's. In
-- the order of the keys, so that two transactions do not deadlock.
INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key)
SELECT $1::integer, i.topic_id, m.order_key
FROM unnest($2::uuid[], $3::date[], $4::bytea[]) m (message_id, born_on, order_key)
JOIN outbox.inbox i ON i.group_id = $1::integer AND i.message_id = m.message_id AND i.born_on = m.born_on
WHERE m.order_key IS NOT NULL
ORDER BY i.topic_id, m.order_key
ON CONFLICT (group_id, topic_id, order_key) DO UPDATE SET since = inbox_held_key.since;

-- name: wait_briefly
-- Limits waits for locks until the transaction ends, to $1 milliseconds.
SELECT pg_catalog.set_config('lock_timeout', $1::text, true);

-- name: park_all
-- Parks messages of a group ($1) whose rows of the inbox are this transaction's and whose keys it holds: $2 message ids, $3 days of
-- birth, $4 order keys, $5 digests, $6 keys, $7 bodies, $8 times in milliseconds; $9 and $10 are the names and values of all
-- headers, of which a message has those from place $11 to $12. The first one of a key can be received, others wait.
INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key, key, body,
    header_names, header_values, published_at, state, attempts, due_at, fingerprint)
SELECT $1::integer, m.message_id, m.born_on, i.topic_id, i.part, i.off, m.digest, m.order_key, m.key, m.body,
    ($9::text[])[m.first_header:m.last_header], ($10::bytea[])[m.first_header:m.last_header],
    pg_catalog.to_timestamp(m.published / 1000::float8), CASE WHEN w.waits THEN 'waiting' ELSE 'retry' END, 0,
    CASE WHEN NOT w.waits THEN pg_catalog.clock_timestamp() END, 'not received yet'
FROM unnest($2::uuid[], $3::date[], $4::bytea[], $5::bytea[], $6::bytea[], $7::bytea[], $8::float8[], $11::integer[],
    $12::integer[]) WITH ORDINALITY
    m (message_id, born_on, order_key, digest, key, body, published, first_header, last_header, place)
JOIN outbox.inbox i ON i.group_id = $1::integer AND i.message_id = m.message_id AND i.born_on = m.born_on
CROSS JOIN LATERAL (
    SELECT EXISTS (SELECT FROM outbox.inbox_parked p
                   WHERE p.group_id = $1::integer AND p.topic_id = i.topic_id AND p.order_key = m.order_key) AS waits
) w
ORDER BY m.place
ON CONFLICT ON CONSTRAINT inbox_parked_once DO NOTHING;

-- name: receive
-- Leases up to $2 messages of a group ($1) for $3 seconds, those that were due first; one that was received $4 times is dead
-- instead. Of an order key only the first message is a retry, so SKIP LOCKED cannot hand out the second one. The search
-- begins at $5, as that of `next_due`; $6 are topics that are paused, and $7 those of this member, as there.
WITH due AS MATERIALIZED (
    SELECT p.id, p.due_at FROM outbox.inbox_parked p
    WHERE p.group_id = $1::integer AND p.state = 'retry' AND p.due_at <= pg_catalog.statement_timestamp()
        AND p.due_at >= pg_catalog.to_timestamp($5::float8 / 1000000::float8)
        AND p.topic_id NOT IN (
            SELECT a.id FROM outbox.inbox_topic a
            WHERE a.name = ANY ($6::text[]) OR a.name <> ALL ($7::text[]) AND EXISTS (
                SELECT FROM outbox.consumer_group g WHERE g.id = $1::integer AND g.subscription ? a.name))
    ORDER BY p.due_at
    LIMIT $2::integer
    FOR UPDATE OF p SKIP LOCKED
)
UPDATE outbox.inbox_parked p
SET state = CASE WHEN p.attempts >= $4::integer THEN 'dead' ELSE 'retry' END,
    due_at = CASE WHEN p.attempts < $4::integer THEN pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3::float8) END,
    attempts = least(p.attempts + 1, $4::integer), failed_at = pg_catalog.clock_timestamp(),
    fingerprint = 'received and not acknowledged', error = 'received and not acknowledged'
FROM due, outbox.inbox_topic t
WHERE p.id = due.id AND t.id = p.topic_id
RETURNING p.id, p.message_id, p.born_on, p.topic_id, t.name, p.part, p.off, p.digest, p.order_key, p.key, p.body,
    p.header_names, p.header_values, (extract(epoch FROM p.published_at) * 1000::numeric)::bigint, p.attempts - 1, '', p.undecided, (extract(epoch FROM due.due_at) * 1000000::numeric)::bigint, p.state = 'dead';

-- name: lacks
-- Whether a group ($1) lacks messages of some partitions ($2 ids of topics, $3 numbers): none of them can be received now, and fewer
-- than $4 of the group are received and not acknowledged, or have a key, such as those that wait behind others.
SELECT NOT EXISTS (
        SELECT FROM outbox.inbox_parked p
        WHERE p.group_id = $1::integer AND p.state = 'retry' AND p.due_at <= pg_catalog.statement_timestamp()
            AND (p.topic_id, p.part) IN (SELECT m.topic_id, m.part FROM unnest($2::integer[], $3::integer[]) m (topic_id, part)))
    AND (SELECT pg_catalog.count(*) FROM (SELECT FROM outbox.inbox_parked p
                               WHERE p.group_id = $1::integer AND p.state = 'retry' LIMIT $4::integer) r) < $4::integer
    AND (SELECT pg_catalog.count(*) FROM (SELECT FROM outbox.inbox_parked p
                               WHERE p.group_id = $1::integer AND p.order_key IS NOT NULL LIMIT $4::integer) k) < $4::integer;

-- name: lock_lease
-- Locks a message ($1) that is acknowledged, and returns the isolation level and its key. NULL instead of the key's group if it
-- was acknowledged, received again ($2 how often it was received) or is dead; and, with nothing locked, in a transaction that
-- keeps its snapshot: it sees neither who has received the message since, nor what was parked behind it.
WITH leased AS (
    SELECT p.group_id, p.topic_id, p.order_key FROM outbox.inbox_parked p
    WHERE p.id = $1::bigint AND p.attempts = $2::integer AND p.state = 'retry'
        AND pg_catalog.current_setting('transaction_isolation') IN ('read committed', 'read uncommitted')
    FOR UPDATE
)
SELECT o.isolation, l.group_id, l.topic_id, l.order_key
FROM (SELECT pg_catalog.current_setting('transaction_isolation') AS isolation) o LEFT JOIN leased l ON true;

-- name: change_lease
-- Lets a message ($1, received $2 times) be received again in $3 seconds from now; nothing as for lock_lease.
UPDATE outbox.inbox_parked p SET due_at = pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => $3::float8)
WHERE p.id = $1::bigint AND p.attempts = $2::integer AND p.state = 'retry'
RETURNING p.id;
