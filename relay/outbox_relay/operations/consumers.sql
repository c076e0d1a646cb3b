-- Consumer groups: what `outbox consumers` lists and resets, and what `outbox status` counts. The rows are the consumers'; see
-- outbox/sql/inbox_groups.sql for what they do with them.

-- name: apply_policies
-- Lets the policies of consumer groups choose the rows of this session, or (%(local)s) of this transaction: with row_security = off
-- each statement that they concern would be an error.
SELECT set_config('row_security', 'on', %(local)s);

-- name: act
-- States who acts in this transaction, for the audit.
SELECT set_config('outbox.actor', %(actor)s, true);

-- name: groups
-- Consumer groups and the topics that they have a position or a parked message in, with what is parked of each. A member that
-- was not seen for a minute does not run; one that has read no partition for a minute is idle, but for pauses. Kafka's id differs between topics that had the same name one after the other.
WITH parked AS (
    SELECT p.group_id, p.topic_id,
        count(*) FILTER (WHERE p.state = 'retry' AND p.due_at <= statement_timestamp()) AS retries_due,
        count(*) FILTER (WHERE p.state = 'retry' AND p.due_at > statement_timestamp()) AS retries_later,
        -- A message that a SimpleConsumer receives for the first time has not failed.
        count(*) FILTER (WHERE p.state = 'retry' AND p.attempts > 0
            AND NOT (p.attempts = 1 AND p.fingerprint = 'received and not acknowledged')) AS retries_failed,
        count(*) FILTER (WHERE p.state = 'waiting') AS waiting,
        count(*) FILTER (WHERE p.state = 'dead') AS dead
    FROM outbox.inbox_parked p GROUP BY p.group_id, p.topic_id
), held AS (
    SELECT h.group_id, h.topic_id, count(*) AS keys FROM outbox.inbox_held_key h GROUP BY h.group_id, h.topic_id
), positions AS (
    SELECT p.group_id, p.topic_id, count(*) AS partitions
    FROM outbox.inbox_position p GROUP BY p.group_id, p.topic_id
), known AS (
    SELECT group_id, topic_id FROM positions UNION SELECT group_id, topic_id FROM parked
)
SELECT g.name AS consumer_group, t.name AS topic, t.kafka_id, g.orderly, g.role::text AS role,
    (SELECT count(*) FROM outbox.consumer_member m
     WHERE m.group_id = g.id AND m.seen_at > clock_timestamp() - interval '60 seconds') AS members,
    (SELECT count(*) FROM outbox.consumer_member m
     WHERE m.group_id = g.id AND m.seen_at > clock_timestamp() - interval '60 seconds'
         AND m.idle_since < clock_timestamp() - interval '60 seconds'
         AND NOT EXISTS (SELECT FROM outbox.consumer_pause p WHERE p.group_id = g.id AND p.resumed_at IS NULL)) AS idle_members,
    (SELECT coalesce(sum(m.full_keys), 0)::bigint FROM outbox.consumer_member m
     WHERE m.group_id = g.id AND m.seen_at > clock_timestamp() - interval '60 seconds') AS full_keys,
    EXISTS (SELECT FROM outbox.consumer_pause p WHERE p.group_id = g.id AND p.topic IN ('', t.name) AND p.resumed_at IS NULL)
        AS is_paused,
    coalesce(o.partitions, 0) AS partitions,
    coalesce(p.retries_due, 0) AS retries_due,
    coalesce(p.retries_later, 0) AS retries_later,
    coalesce(p.retries_failed, 0) AS retries_failed,
    coalesce(p.waiting, 0) AS waiting,
    coalesce(h.keys, 0) AS held_keys,
    coalesce(p.dead, 0) AS dead
FROM outbox.consumer_group g
LEFT JOIN known k ON k.group_id = g.id
LEFT JOIN outbox.inbox_topic t ON t.id = k.topic_id
LEFT JOIN positions o ON o.group_id = k.group_id AND o.topic_id = k.topic_id
LEFT JOIN parked p ON p.group_id = k.group_id AND p.topic_id = k.topic_id
LEFT JOIN held h ON h.group_id = k.group_id AND h.topic_id = k.topic_id
ORDER BY g.name, t.name, t.id;

-- name: positions
-- Where groups, or one of them, are in each partition.
SELECT g.name AS consumer_group, t.name AS topic, t.kafka_id, p.part AS partition, p.next_off AS position, p.generation,
    p.moved_at
FROM outbox.inbox_position p
JOIN outbox.consumer_group g ON g.id = p.group_id
JOIN outbox.inbox_topic t ON t.id = p.topic_id
WHERE (%(group)s::text IS NULL OR g.name = %(group)s)
ORDER BY g.name, t.name, t.id, p.part;

-- name: group
-- One consumer group by its name.
SELECT g.name AS consumer_group, g.orderly, g.subscription, g.registered_at, g.role::text AS role
FROM outbox.consumer_group g WHERE g.name = %(group)s;

-- name: hidden_by
-- The role of a group that this user does not see, and the user.
SELECT outbox.role_of_consumer_group(%(group)s)::text, current_user::text;

-- name: roles
-- The roles of this server.
SELECT r.rolname::text FROM pg_catalog.pg_roles r ORDER BY 1;

-- name: bind
-- Binds a group to a role. A group whose first member has not run yet is registered; that member states how it reads. Returns
-- whether it is new.
INSERT INTO outbox.consumer_group (name, subscription, orderly, role)
VALUES (%(group)s, '{}', false, %(role)s)
ON CONFLICT (name) DO UPDATE SET role = excluded.role
RETURNING xmax = 0;

-- name: unbind
-- Leaves a group to all consumers again.
UPDATE outbox.consumer_group g SET role = NULL WHERE g.name = %(group)s;

-- name: pauses
-- The pauses of a group that have not ended; the topic is null for all of them.
SELECT nullif(p.topic, '') AS topic, p.reason, p.paused_at, p.paused_by
FROM outbox.consumer_pause p
JOIN outbox.consumer_group g ON g.id = p.group_id
WHERE g.name = %(group)s AND p.resumed_at IS NULL
ORDER BY p.topic;

-- name: members
-- The members of a group, and whether each runs: it was seen within a minute.
SELECT m.member, m.started_at, m.seen_at, m.seen_at > clock_timestamp() - interval '60 seconds' AS runs, m.partitions,
    m.full_keys, m.idle_since
FROM outbox.consumer_member m
JOIN outbox.consumer_group g ON g.id = m.group_id
WHERE g.name = %(group)s
ORDER BY m.started_at, m.member;

-- name: totals
-- How many groups there are, what is parked of all of them, retries by group, the members that read no partition, with one of
-- their groups, the keys that are full, likewise, and the groups that are paused, or topics of them.
WITH retrying AS (
    SELECT p.group_id, count(*) AS messages FROM outbox.inbox_parked p WHERE p.state = 'retry' GROUP BY p.group_id
), idle AS (
    SELECT m.group_id FROM outbox.consumer_member m
    WHERE m.seen_at > clock_timestamp() - interval '60 seconds' AND m.idle_since < clock_timestamp() - interval '60 seconds'
        AND m.group_id NOT IN (SELECT p.group_id FROM outbox.consumer_pause p WHERE p.resumed_at IS NULL)
), filled AS (
    SELECT m.group_id, m.full_keys FROM outbox.consumer_member m
    WHERE m.seen_at > clock_timestamp() - interval '60 seconds' AND m.full_keys > 0
)
SELECT (SELECT count(*) FROM outbox.consumer_group) AS groups, (SELECT count(*) FROM idle) AS idle_members,
    (SELECT min(g.name) FROM outbox.consumer_group g WHERE g.id IN (SELECT group_id FROM idle)) AS idle_group,
    (SELECT coalesce(sum(f.full_keys), 0)::bigint FROM filled f) AS full_keys,
    (SELECT min(g.name) FROM outbox.consumer_group g WHERE g.id IN (SELECT group_id FROM filled)) AS full_group,
    (SELECT count(DISTINCT p.group_id) FROM outbox.consumer_pause p WHERE p.resumed_at IS NULL) AS paused,
    (SELECT min(g.name) FROM outbox.consumer_group g
     WHERE g.id IN (SELECT p.group_id FROM outbox.consumer_pause p WHERE p.resumed_at IS NULL)) AS paused_group,
    (SELECT count(*) FROM outbox.inbox_parked WHERE state = 'dead') AS dead,
    (SELECT coalesce(sum(r.messages), 0)::bigint FROM retrying r) AS retries,
    (SELECT coalesce(jsonb_object_agg(g.name, r.messages), '{}')
     FROM retrying r JOIN outbox.consumer_group g ON g.id = r.group_id) AS retrying,
    (SELECT count(*) FROM outbox.inbox_held_key) AS held_keys;

-- name: what_is_deleted
-- What a group has, as an operator is shown it before it is deleted.
SELECT (SELECT count(*) FROM outbox.inbox_position p WHERE p.group_id = g.id) AS positions,
    (SELECT count(*) FROM outbox.inbox_parked p WHERE p.group_id = g.id AND p.state <> 'dead') AS parked,
    (SELECT count(*) FROM outbox.inbox_parked p WHERE p.group_id = g.id AND p.state = 'dead') AS dead
FROM outbox.consumer_group g WHERE g.name = %(group)s;

-- name: delete_group
-- Deletes a group but for its inbox; its number, or null.
SELECT outbox.delete_consumer_group(%(group)s, %(reason)s);

-- name: deleted
-- The groups of a name that were deleted.
SELECT d.id FROM outbox.deleted_consumer_group d WHERE d.name = %(group)s ORDER BY d.id;

-- name: forget
-- Deletes some rows of the inbox of a group that was deleted; how many.
SELECT outbox.forget_deleted_group(%(number)s, %(most)s);

-- name: lock_group
-- Locks a group, so that no member joins and none stores a position before this transaction ends.
SELECT g.id FROM outbox.consumer_group g WHERE g.name = %(group)s FOR UPDATE;

-- name: reset
-- Sets positions of a group in a topic by Kafka's id of it, and counts their generation up: members that read them before store
-- nothing there any more.
INSERT INTO outbox.inbox_position AS p (group_id, topic_id, part, next_off)
SELECT %(group_id)s, t.id, r.part, r.off
FROM outbox.inbox_topic t, unnest(%(parts)s::integer[], %(offsets)s::bigint[]) r (part, off)
WHERE t.kafka_id = %(kafka_id)s
ON CONFLICT (group_id, topic_id, part)
DO UPDATE SET next_off = EXCLUDED.next_off, generation = p.generation + 1, moved_at = clock_timestamp()
RETURNING p.part;

-- name: of_message
-- What each consumer group of this database did with one message, if it was published: it has taken it over for good ("applied"), it
-- failed with it and tries again ("retrying"), it waits behind another one of its key ("waiting"), it has given it up ("dead"), it is
-- still in front of it ("unread"), or it has passed it and left it out ("passed"). `behind`: what waits behind it. `front`: the id of
-- what it waits behind. Groups that do not subscribe to the topic are left out. Group by group, so that indexes are used without statistics.
SELECT g.name AS consumer_group,
    CASE WHEN p.state = 'retry' THEN 'retrying' WHEN p.state IS NOT NULL THEN p.state
         WHEN i.message_id IS NOT NULL THEN 'applied' WHEN o.next_off > %(offset)s::bigint THEN 'passed' ELSE 'unread' END AS state,
    i.handled_at, i.part AS partition, i.off AS "offset", o.next_off AS position, p.id AS parked_id, p.attempts, p.failed_at, p.due_at,
    p.fingerprint AS failure, p.error,
    (SELECT count(*) FROM outbox.inbox_parked w
     WHERE p.state <> 'waiting' AND w.group_id = g.id AND w.topic_id = p.topic_id AND w.order_key = p.order_key
         AND w.state = 'waiting') AS behind,
    (SELECT f.message_id FROM outbox.inbox_parked f
     WHERE p.state = 'waiting' AND f.group_id = g.id AND f.topic_id = p.topic_id AND f.order_key = p.order_key
         AND f.state IN ('retry', 'dead')) AS front
FROM outbox.consumer_group g
LEFT JOIN LATERAL (
    SELECT r.message_id, r.handled_at, r.part, r.off FROM outbox.inbox r
    WHERE r.group_id = g.id AND r.message_id = %(message_id)s::uuid
        AND r.born_on = (%(born_at)s::timestamptz AT TIME ZONE 'UTC')::date
    LIMIT 1
) i ON true
LEFT JOIN LATERAL (
    SELECT r.id, r.topic_id, r.order_key, r.state, r.attempts, r.failed_at, r.due_at, r.fingerprint, r.error
    FROM outbox.inbox_parked r WHERE r.group_id = g.id AND r.message_id = %(message_id)s::uuid OFFSET 0
) p ON true
LEFT JOIN LATERAL (
    SELECT n.next_off FROM outbox.inbox_topic t
    JOIN outbox.inbox_position n ON n.group_id = g.id AND n.topic_id = t.id AND n.part = %(partition)s::integer
    WHERE t.name = %(topic)s ORDER BY t.id DESC LIMIT 1
) o ON true
WHERE i.message_id IS NOT NULL OR p.id IS NOT NULL OR %(offset)s::bigint IS NOT NULL AND g.subscription -> %(topic)s::text IS NOT NULL
ORDER BY g.name, p.id;
