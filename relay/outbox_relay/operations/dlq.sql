-- Dead letters of consumer groups: what `outbox dlq` finds, tries again and discards. The rows are the consumers'; see
-- outbox/sql/inbox.sql for what they do with them.

-- name: ls
-- Dead letters that fit, the oldest first, with how many messages of the same key wait behind each.
SELECT p.id, g.name AS consumer_group, t.name AS topic, p.part AS partition, p.off AS "offset", p.message_id, p.key,
    p.attempts, p.failed_at, p.fingerprint AS failure,
    (SELECT count(*) FROM outbox.inbox_parked w
     WHERE w.group_id = p.group_id AND w.topic_id = p.topic_id AND w.order_key = p.order_key
         AND w.state = 'waiting') AS waiting
FROM outbox.inbox_parked p
JOIN outbox.consumer_group g ON g.id = p.group_id
JOIN outbox.inbox_topic t ON t.id = p.topic_id
WHERE p.state = 'dead' AND p.id > %(after)s
    AND (%(ids)s::bigint[] IS NULL OR p.id = ANY (%(ids)s::bigint[]))
    AND (%(group)s::text IS NULL OR g.name = %(group)s)
    AND (%(topic)s::text IS NULL OR t.name = %(topic)s)
    AND (%(failure)s::text IS NULL OR strpos(p.fingerprint, %(failure)s) > 0)
    AND (%(since)s::timestamptz IS NULL OR p.failed_at >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR p.failed_at < %(until)s)
ORDER BY p.id
LIMIT %(limit)s;

-- name: retrying
-- Messages that failed, fit, and are tried again, the next try first. The index of what is due ends the search in each group at
-- the limit, however many wait.
SELECT p.id, g.name AS consumer_group, t.name AS topic, p.part AS partition, p.off AS "offset", p.message_id, p.key, p.attempts,
    p.failed_at, p.due_at, p.fingerprint AS failure,
    (SELECT count(*) FROM outbox.inbox_parked w
     WHERE w.group_id = g.id AND w.topic_id = p.topic_id AND w.order_key = p.order_key AND w.state = 'waiting') AS waiting
FROM outbox.consumer_group g
CROSS JOIN LATERAL (
    SELECT p.id, p.topic_id, p.part, p.off, p.message_id, p.key, p.order_key, p.attempts, p.failed_at, p.due_at, p.fingerprint
    FROM outbox.inbox_parked p
    WHERE p.group_id = g.id AND p.state = 'retry' AND p.attempts > 0
        AND (%(topic)s::text IS NULL OR p.topic_id IN (SELECT n.id FROM outbox.inbox_topic n WHERE n.name = %(topic)s))
        AND (%(failure)s::text IS NULL OR strpos(p.fingerprint, %(failure)s) > 0)
        AND (%(since)s::timestamptz IS NULL OR p.failed_at >= %(since)s)
        AND (%(until)s::timestamptz IS NULL OR p.failed_at < %(until)s)
    ORDER BY p.due_at
    LIMIT %(limit)s
) p
JOIN outbox.inbox_topic t ON t.id = p.topic_id
WHERE (%(group)s::text IS NULL OR g.name = %(group)s)
ORDER BY p.due_at, p.id
LIMIT %(limit)s;

-- name: summary
-- Dead letters by group and failure, the most frequent first; `example` is the oldest one.
SELECT g.name AS consumer_group, p.fingerprint AS failure, count(*) AS messages, min(p.failed_at) AS first_at,
    max(p.failed_at) AS last_at, array_agg(DISTINCT t.name) AS topics, min(p.id) AS example
FROM outbox.inbox_parked p
JOIN outbox.consumer_group g ON g.id = p.group_id
JOIN outbox.inbox_topic t ON t.id = p.topic_id
WHERE p.state = 'dead'
    AND (%(group)s::text IS NULL OR g.name = %(group)s)
GROUP BY g.name, p.fingerprint
ORDER BY messages DESC, first_at;

-- name: show
-- One parked message, whatever its state, without body and headers.
SELECT p.id, g.name AS consumer_group, t.name AS topic, p.part AS partition, p.off AS "offset", p.message_id, p.key, p.state,
    p.attempts, p.due_at, p.published_at, p.parked_at, p.failed_at, p.fingerprint AS failure, p.error,
    p.is_copied, p.copy_error
FROM outbox.inbox_parked p
JOIN outbox.consumer_group g ON g.id = p.group_id
JOIN outbox.inbox_topic t ON t.id = p.topic_id
WHERE p.id = %(id)s;

-- name: contents
-- Body and headers of parked messages; needs the role outbox_consumer.
SELECT p.id, p.body, p.header_names, p.header_values
FROM outbox.inbox_parked p
WHERE p.id = ANY (%(ids)s::bigint[]);

-- name: redrive
-- Makes dead letters retries that are due now, with all their attempts before them: those that have not failed again since
-- they were listed. Of a key only the first message is dead, so its successors stay behind it.
UPDATE outbox.inbox_parked p SET state = 'retry', due_at = clock_timestamp(), attempts = 0
FROM unnest(%(ids)s::bigint[], %(failed_at)s::timestamptz[]) l (id, failed_at)
WHERE p.id = l.id AND p.state = 'dead' AND p.failed_at IS NOT DISTINCT FROM l.failed_at
RETURNING p.id;

-- name: lock_dead
-- Locks a dead letter that shall be discarded; nothing if somebody else has dealt with it, or it has failed again since it
-- was listed.
SELECT p.group_id, p.topic_id, p.order_key
FROM outbox.inbox_parked p
WHERE p.id = %(id)s AND p.state = 'dead' AND p.failed_at IS NOT DISTINCT FROM %(failed_at)s::timestamptz
FOR UPDATE;

-- name: lacks_held_key
-- Whether a message is parked whose order key is not held, or that waits behind nothing; nothing is locked. What a replay has
-- parked waits until the replay is at its end.
SELECT EXISTS (
    SELECT FROM outbox.inbox_parked p
    WHERE p.order_key IS NOT NULL AND p.state IN ('retry', 'dead')
        AND NOT EXISTS (SELECT FROM outbox.inbox_held_key h
                        WHERE h.group_id = p.group_id AND h.topic_id = p.topic_id AND h.order_key = p.order_key)
) OR EXISTS (
    SELECT FROM outbox.inbox_parked p
    WHERE p.state = 'waiting' AND p.replay IS NULL
        AND NOT EXISTS (SELECT FROM outbox.inbox_parked e
                        WHERE e.group_id = p.group_id AND e.topic_id = p.topic_id AND e.order_key = p.order_key
                            AND (e.id < p.id OR e.state IN ('retry', 'dead')))
);

-- name: hold
-- Holds order keys again whose row was deleted although a message of them is parked, and lets the first message of a key be
-- tried if nothing else of the key is: it would wait for ever. The first message is locked first: a retry that runs ends before,
-- and if it takes its message out, the key is not held. Nothing would ever release it.
WITH head AS MATERIALIZED (
    SELECT p.id, p.group_id, p.topic_id, p.order_key
    FROM outbox.inbox_parked p
    WHERE p.order_key IS NOT NULL
        AND NOT EXISTS (SELECT FROM outbox.inbox_parked e
                        WHERE e.group_id = p.group_id AND e.topic_id = p.topic_id AND e.order_key = p.order_key
                            AND e.id < p.id)
        AND (NOT EXISTS (SELECT FROM outbox.inbox_held_key h
                         WHERE h.group_id = p.group_id AND h.topic_id = p.topic_id AND h.order_key = p.order_key)
             OR p.replay IS NULL
                AND NOT EXISTS (SELECT FROM outbox.inbox_parked e
                                WHERE e.group_id = p.group_id AND e.topic_id = p.topic_id AND e.order_key = p.order_key
                                    AND e.state IN ('retry', 'dead')))
    FOR UPDATE OF p
), begun AS (
    UPDATE outbox.inbox_parked p SET state = 'retry', due_at = clock_timestamp()
    FROM head f
    WHERE p.id = f.id AND p.state = 'waiting' AND p.replay IS NULL
        AND NOT EXISTS (SELECT FROM outbox.inbox_parked e
                        WHERE e.group_id = p.group_id AND e.topic_id = p.topic_id AND e.order_key = p.order_key
                            AND e.state IN ('retry', 'dead'))
    RETURNING p.group_id, p.topic_id, p.order_key
), held AS (
    INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key)
    SELECT h.group_id, h.topic_id, h.order_key FROM head h
    ON CONFLICT DO NOTHING
    RETURNING group_id, topic_id, order_key
)
SELECT g.name AS consumer_group, t.name AS topic, h.order_key AS key
FROM (SELECT * FROM held UNION SELECT * FROM begun) h
JOIN outbox.consumer_group g ON g.id = h.group_id
JOIN outbox.inbox_topic t ON t.id = h.topic_id
ORDER BY g.name, t.name, h.order_key;
