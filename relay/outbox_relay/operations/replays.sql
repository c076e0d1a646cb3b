-- A replay of old messages to one consumer group, in the database of the consumer. See replays.py for the order of the steps,
-- and tests/support/models/inbox_replay_model.py for why it is this one.

-- name: topic
-- The topic of this name that the group reads: the last one, if it was made again under its name.
SELECT g.id AS group_id, g.orderly, g.subscription ->> t.name AS subscribed, t.id AS topic_id, t.kafka_id
FROM outbox.consumer_group g
JOIN outbox.inbox_position p ON p.group_id = g.id
JOIN outbox.inbox_topic t ON t.id = p.topic_id
WHERE g.name = %(group)s AND t.name = %(topic)s
ORDER BY t.id DESC LIMIT 1;

-- name: positions
-- Where the group is in the topic: what lies beyond that is not read yet.
SELECT p.part, p.next_off FROM outbox.inbox_position p
WHERE p.group_id = %(group_id)s AND p.topic_id = %(topic_id)s;

-- name: known
-- For each message (by its place from 1): whether the group has its row, whether it is parked, and whether its row may have been
-- dropped. A row of another topic of the cluster is of a copy, as in outbox/sql/inbox.sql.
SELECT EXISTS (SELECT FROM outbox.inbox i
               WHERE i.group_id = %(group_id)s AND i.message_id = m.message_id AND i.born_on = m.born_on
                   AND NOT EXISTS (SELECT FROM outbox.inbox_topic a JOIN outbox.inbox_topic b ON a.name <> b.name
                                       AND split_part(a.kafka_id, '/', 1) = split_part(b.kafka_id, '/', 1)
                                   WHERE a.id = i.topic_id AND b.id = %(topic_id)s)),
    EXISTS (SELECT FROM outbox.inbox_parked p WHERE p.group_id = %(group_id)s AND p.message_id = m.message_id),
    EXISTS (SELECT FROM outbox.inbox_floor f WHERE f.group_id = %(group_id)s AND f.born_before > m.born_on)
FROM unnest(%(ids)s::uuid[], %(days)s::date[]) WITH ORDINALITY m (message_id, born_on, place)
ORDER BY m.place;

-- name: held
-- How many of these order keys are held: by a message that failed, or by its retry.
SELECT count(*) FROM outbox.inbox_held_key h
WHERE h.group_id = %(group_id)s AND h.topic_id = %(topic_id)s AND h.order_key = ANY (%(keys)s::bytea[]);

-- name: begin
-- A new replay; refused by the index inbox_replay_open while another one of the group is not finished.
INSERT INTO outbox.inbox_replay (group_id, topic_id, selection, source, again, orderly, published_before)
VALUES (%(group_id)s, %(topic_id)s, %(selection)s, %(source)s, %(again)s, %(orderly)s, %(published_before)s)
ON CONFLICT (group_id) WHERE finished_at IS NULL DO NOTHING
RETURNING id;

-- name: open
-- The replay of a group that is not finished.
SELECT r.id, r.selection, r.source, r.again, r.published_before, r.after_key, r.after_position, r.parked, r.actor, r.started_at
FROM outbox.inbox_replay r JOIN outbox.consumer_group g ON g.id = r.group_id
WHERE g.name = %(group)s AND r.finished_at IS NULL;

-- name: lock
-- Locks a replay, if it is still where it was when this process read it, and its group, so that its positions are not reset
-- meanwhile. Nothing: another process goes on with it.
SELECT g.orderly = r.orderly
FROM outbox.inbox_replay r JOIN outbox.consumer_group g ON g.id = r.group_id
WHERE r.id = %(id)s AND r.finished_at IS NULL AND r.after_key IS NOT DISTINCT FROM %(after_key)s::bytea
    AND r.after_position IS NOT DISTINCT FROM %(after_position)s::bigint
FOR UPDATE OF r FOR SHARE OF g;

-- name: hold
-- Holds keys, in their order, and locks their rows.
INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key)
SELECT %(group_id)s, %(topic_id)s, k.order_key FROM unnest(%(keys)s::bytea[]) k (order_key) ORDER BY k.order_key
ON CONFLICT (group_id, topic_id, order_key) DO UPDATE SET since = inbox_held_key.since;

-- name: park
-- Parks messages in the order of the arrays, in which their ids are given, too. One of an order key waits; `promote` lets the
-- first of its key run. Others are due at once. A message that is parked already stays as it is.
INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key, key, body,
    header_names, header_values, published_at, state, attempts, due_at, fingerprint, undecided, replay)
SELECT %(group_id)s, m.message_id, m.born_on, %(topic_id)s, m.part, m.off, m.digest, m.order_key, m.key, m.body,
    (%(names)s::text[])[m.first_header:m.last_header], (%(values)s::bytea[])[m.first_header:m.last_header],
    m.published_at, CASE WHEN m.order_key IS NULL THEN 'retry' ELSE 'waiting' END, 0,
    CASE WHEN m.order_key IS NULL THEN clock_timestamp() END, %(fingerprint)s, %(undecided)s, %(replay)s
FROM unnest(%(ids)s::uuid[], %(days)s::date[], %(parts)s::integer[], %(offsets)s::bigint[], %(digests)s::bytea[],
    %(order_keys)s::bytea[], %(message_keys)s::bytea[], %(bodies)s::bytea[], %(published)s::timestamptz[],
    %(firsts)s::integer[], %(lasts)s::integer[]) WITH ORDINALITY
    m (message_id, born_on, part, off, digest, order_key, key, body, published_at, first_header, last_header, place)
ORDER BY m.place
ON CONFLICT ON CONSTRAINT inbox_parked_once DO NOTHING;

-- name: note
-- How far a replay is.
UPDATE outbox.inbox_replay
SET after_key = %(after_key)s, after_position = %(after_position)s, parked = parked + %(parked)s
WHERE id = %(id)s;

-- name: waiting_keys
-- The order keys of which messages of a replay wait.
SELECT DISTINCT p.order_key FROM outbox.inbox_parked p WHERE p.replay = %(id)s AND p.state = 'waiting';

-- name: lock_keys
-- Locks held keys, in their order: nobody takes a message of them out meanwhile.
SELECT FROM outbox.inbox_held_key h
WHERE h.group_id = %(group_id)s AND h.topic_id = %(topic_id)s AND h.order_key = ANY (%(keys)s::bytea[])
ORDER BY h.order_key
FOR UPDATE;

-- name: promote
-- Lets the first message of each key run, if it waits and is one of the replay. In a statement after `lock_keys`, whose snapshot
-- has what those that held the keys before have left.
UPDATE outbox.inbox_parked p SET state = 'retry', due_at = clock_timestamp()
FROM unnest(%(keys)s::bytea[]) k (order_key)
CROSS JOIN LATERAL (
    SELECT f.id FROM outbox.inbox_parked f
    WHERE f.group_id = %(group_id)s AND f.topic_id = %(topic_id)s AND f.order_key = k.order_key
    ORDER BY f.id LIMIT 1
) f
WHERE p.id = f.id AND p.state = 'waiting' AND p.replay = %(id)s;

-- name: in_hand
-- How many messages of a replay are to be tried, counted up to a limit.
SELECT count(*) FROM (SELECT FROM outbox.inbox_parked p WHERE p.replay = %(id)s AND p.state = 'retry' LIMIT %(limit)s) p;

-- name: finish
-- Ends a replay; what it has parked stays parked until it is applied.
UPDATE outbox.inbox_replay SET finished_at = clock_timestamp() WHERE id = %(id)s AND finished_at IS NULL RETURNING parked;
