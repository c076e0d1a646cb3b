-- Consumer groups, their members and their positions.

-- name: types
-- The types of topics ($1) that are registered in this database, with a topic of each. MIXED fits all others.
SELECT t.message_type, pg_catalog.min(t.name) FROM outbox.topic t
WHERE t.name = ANY ($1::text[]) AND t.message_type <> 'MIXED'
GROUP BY t.message_type
ORDER BY t.message_type;

-- name: find_group
-- A consumer group by its name; its row is locked until the transaction ends, so that members join one after the other.
SELECT g.id, g.subscription::text, g.orderly FROM outbox.consumer_group g WHERE g.name = $1::text FOR UPDATE;

-- name: add_group
-- A new consumer group.
INSERT INTO outbox.consumer_group (name, subscription, orderly)
VALUES ($1::text, $2::jsonb, $3::boolean)
ON CONFLICT (name) DO NOTHING;

-- name: hidden_by
-- The role that a group which this user does not see is bound to, and the user.
SELECT outbox.role_of_consumer_group($1::text)::text, current_user::text;

-- name: others
-- Members of a group that run and read a topic by another expression ($3 subscription), or have another kind of listener ($4), except
-- for $2. They may read other topics: Kafka gives a partition only to a member that reads its topic.
SELECT m.member, m.subscription::text, m.orderly
FROM outbox.consumer_member m
WHERE m.group_id = $1::integer AND m.member <> $2::text AND m.seen_at > pg_catalog.clock_timestamp() - interval '60 seconds'
    AND (m.orderly <> $4::boolean OR EXISTS (
        SELECT FROM pg_catalog.jsonb_each($3::jsonb) o WHERE m.subscription -> o.key <> o.value));

-- name: change_group
-- What the members of a group ($1) that run read together, and by which kind of listener ($2).
UPDATE outbox.consumer_group g SET subscription = r.subscription, orderly = $2::boolean
FROM (
    SELECT pg_catalog.jsonb_object_agg(e.key, e.value) AS subscription
    FROM outbox.consumer_member m CROSS JOIN LATERAL pg_catalog.jsonb_each(m.subscription) e
    WHERE m.group_id = $1::integer AND m.seen_at > pg_catalog.clock_timestamp() - interval '60 seconds'
) r
WHERE g.id = $1::integer AND (g.subscription <> r.subscription OR g.orderly <> $2::boolean)
RETURNING g.id;

-- name: may_copy
-- Whether a topic ($1) is registered, and whether this role may send to it.
SELECT EXISTS (SELECT FROM outbox.topic t WHERE t.name = $1::text),
    pg_catalog.has_any_column_privilege('outbox.message', 'INSERT');

-- name: copy_to
-- Where copies of the dead letters of a group ($1) are sent ($2); null: nowhere.
UPDATE outbox.consumer_group SET dead_letter_topic = $2::text
WHERE id = $1::integer AND dead_letter_topic IS DISTINCT FROM $2::text
RETURNING id;

-- name: join
-- Lists a member, or renews that it lives, with the number of partitions that it reads ($5), and of keys that are full ($6).
INSERT INTO outbox.consumer_member AS m (group_id, member, subscription, orderly, partitions, full_keys, idle_since)
VALUES ($1::integer, $2::text, $3::jsonb, $4::boolean, $5::integer, $6::integer,
    CASE WHEN $5::integer = 0 THEN pg_catalog.clock_timestamp() END)
ON CONFLICT (group_id, member) DO UPDATE SET seen_at = pg_catalog.clock_timestamp(), partitions = EXCLUDED.partitions,
    full_keys = EXCLUDED.full_keys,
    idle_since = CASE WHEN EXCLUDED.partitions = 0 THEN coalesce(m.idle_since, EXCLUDED.idle_since) END
RETURNING 1;

-- name: is_listed
-- A member that registered within half of the minute after which others may differ from it.
SELECT 1 FROM outbox.consumer_member m
WHERE m.group_id = $1::integer AND m.member = $2::text AND m.seen_at > pg_catalog.clock_timestamp() - interval '30 seconds';

-- name: pauses
-- The topics of a group ($1) that are paused, and why; '' is all of them.
SELECT p.topic, p.reason FROM outbox.consumer_pause p WHERE p.group_id = $1::integer AND p.resumed_at IS NULL;

-- name: pause
-- Pauses a group ($1) or a topic in it ($2), unless it is paused ($3 why); returns whether there is such a group, and whether it changed.
WITH known AS (
    SELECT g.id FROM outbox.consumer_group g WHERE g.name = $1::text
), paused AS (
    INSERT INTO outbox.consumer_pause (group_id, topic, reason) SELECT k.id, $2::text, $3::text FROM known k
    ON CONFLICT (group_id, topic) WHERE resumed_at IS NULL DO NOTHING
    RETURNING 1
)
SELECT EXISTS (SELECT FROM known), EXISTS (SELECT FROM paused);

-- name: resume
-- Ends a pause of a group ($1), of all topics or of one ($2); returns as `pause`.
WITH known AS (
    SELECT g.id FROM outbox.consumer_group g WHERE g.name = $1::text
), resumed AS (
    UPDATE outbox.consumer_pause p SET resumed_at = pg_catalog.clock_timestamp(), resumed_by = outbox.actor()
    FROM known k WHERE p.group_id = k.id AND p.topic = $2::text AND p.resumed_at IS NULL
    RETURNING 1
)
SELECT EXISTS (SELECT FROM known), EXISTS (SELECT FROM resumed);

-- name: count_behind
-- What waits behind messages of a group ($1) that failed, among its first $3 rows: how many keys have some, how many messages wait,
-- and how many members share what may. With it the keys that have more than $2 of them, if there are any.
WITH behind AS MATERIALIZED (
    SELECT p.topic_id, p.order_key, pg_catalog.count(*) - 1 AS messages
    FROM (
        SELECT k.topic_id, k.order_key FROM outbox.inbox_parked k
        WHERE k.group_id = $1::integer AND k.order_key IS NOT NULL
        ORDER BY k.topic_id, k.order_key
        LIMIT $3::bigint
    ) p
    GROUP BY p.topic_id, p.order_key
)
SELECT a.keys, a.messages, a.members, t.name, b.order_key, b.messages
FROM (
    SELECT pg_catalog.count(*) AS keys, coalesce(pg_catalog.sum(s.messages), 0)::bigint AS messages,
        (SELECT pg_catalog.count(*) FROM outbox.consumer_member m
         WHERE m.group_id = $1::integer AND m.seen_at > pg_catalog.clock_timestamp() - interval '60 seconds') AS members
    FROM behind s
) a
LEFT JOIN behind b ON b.messages > $2::bigint
LEFT JOIN outbox.inbox_topic t ON t.id = b.topic_id;

-- name: leave
-- Removes a member, and those that died a day ago.
DELETE FROM outbox.consumer_member
WHERE group_id = $1::integer AND (member = $2::text OR seen_at < pg_catalog.clock_timestamp() - interval '1 day')
RETURNING member;

-- name: find_topic
-- The number of a topic, by Kafka's id of it.
SELECT t.id FROM outbox.inbox_topic t WHERE t.kafka_id = $1::text;

-- name: add_topic
-- A topic that is met for the first time.
INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ($1::text, $2::text) ON CONFLICT (kafka_id) DO NOTHING;

-- name: positions
-- Where a group is in a topic.
SELECT p.part, p.next_off, p.generation FROM outbox.inbox_position p
WHERE p.group_id = $1::integer AND p.topic_id = $2::integer;

-- name: begin
-- Where a group begins in partitions ($3) that have no position yet; the first one who states it wins.
INSERT INTO outbox.inbox_position (group_id, topic_id, part, next_off)
SELECT $1::integer, $2::integer, b.part, b.off FROM unnest($3::integer[], $4::bigint[]) b (part, off)
ON CONFLICT DO NOTHING
RETURNING part;

-- name: store
-- Moves positions forward: $2 topics, $3 partitions, $4 offsets, $5 generations. One that was reset meanwhile is left alone.
UPDATE outbox.inbox_position p
SET next_off = s.off, moved_at = pg_catalog.clock_timestamp()
FROM unnest($2::integer[], $3::integer[], $4::bigint[], $5::integer[]) s (topic_id, part, off, generation)
WHERE p.group_id = $1::integer AND p.topic_id = s.topic_id AND p.part = s.part
    AND p.generation = s.generation AND p.next_off < s.off
RETURNING p.part;

-- name: claim
-- States who reads partitions ($3) from now on ($4). Returns for each of them whether it was another member's, which has not given it back.
UPDATE outbox.inbox_position p SET reader = $4::text
FROM (
    SELECT b.part, b.reader FROM outbox.inbox_position b
    WHERE b.group_id = $1::integer AND b.topic_id = $2::integer AND b.part = ANY ($3::integer[])
    FOR UPDATE
) b
WHERE p.group_id = $1::integer AND p.topic_id = $2::integer AND p.part = b.part
RETURNING p.part, b.reader IS NOT NULL AND b.reader <> $4::text;

-- name: forget_runs
-- Removes what is counted of deliveries of partitions ($3): all of it, but of those ($4) that were not given back what was not done.
DELETE FROM outbox.inbox_run r
WHERE r.group_id = $1::integer AND r.topic_id = $2::integer AND r.part = ANY ($3::integer[]) AND NOT r.is_retry
    AND (r.part <> ALL ($4::integer[]) OR EXISTS (
        SELECT FROM outbox.inbox i
        WHERE i.group_id = r.group_id AND i.message_id = r.message_id AND i.born_on = r.born_on
    ))
RETURNING r.part;

-- name: begun_runs
-- Deliveries of partitions ($3) that have begun, and were not done when their process ended.
SELECT r.part, r.off FROM outbox.inbox_run r
WHERE r.group_id = $1::integer AND r.topic_id = $2::integer AND r.part = ANY ($3::integer[]) AND NOT r.is_retry;

-- name: release
-- Gives partitions back that a member ($2) reads: $3 topics and $4 partitions, or all of them.
UPDATE outbox.inbox_position p SET reader = NULL
WHERE p.group_id = $1::integer AND p.reader = $2::text
    AND ($3::integer[] IS NULL OR EXISTS (
        SELECT FROM unnest($3::integer[], $4::integer[]) s (topic_id, part) WHERE s.topic_id = p.topic_id AND s.part = p.part
    ))
RETURNING p.part;

-- name: count_run
-- Counts that a run of a message begins ($1 group, $2 topic, $3 partition, $4 offset, $5 id, $6 day of birth, $7 whether it is parked) in
-- a process ($8), however often it begins there. Returns in how many processes it has begun, one after the other.
INSERT INTO outbox.inbox_run AS r (group_id, topic_id, part, off, message_id, born_on, is_retry, member)
VALUES ($1::integer, $2::integer, $3::integer, $4::bigint, $5::uuid, $6::date, $7::boolean, $8::text)
ON CONFLICT (group_id, topic_id, part, off) DO UPDATE
SET runs = r.runs + CASE WHEN r.member = excluded.member THEN 0 ELSE 1 END, member = excluded.member, is_retry = excluded.is_retry,
    began_at = pg_catalog.clock_timestamp()
RETURNING runs;

-- name: ensure_partition
-- Makes the partition of the inbox for a day of birth.
SELECT outbox.ensure_inbox_partition($1::date);

-- name: ensure_ahead
-- Makes the partitions of the inbox from yesterday to a week from now.
SELECT outbox.ensure_inbox_partition(current_date + n) FROM pg_catalog.generate_series(-1, 7) n;

-- name: end_session
-- Ends the session of a listener that has run past its time-out, so that its transaction ends, too.
SELECT pg_catalog.pg_terminate_backend($1::integer);

-- name: server
-- Where this session leads to: the cluster, its timeline, which changes when a standby is promoted, and the database and the
-- inbox by their oids, which change when a dump is read in.
SELECT s.system_identifier,
       ('x' || pg_catalog.substr(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 1, 8))::bit(32)::integer,
       d.oid::bigint, 'outbox.inbox'::pg_catalog.regclass::oid::bigint
FROM pg_catalog.pg_control_system() s, pg_catalog.pg_database d
WHERE d.datname = pg_catalog.current_database();
