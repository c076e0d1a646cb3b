-- The producer group registry as the library uses it. Intervals go out as whole microseconds, see decide.sql.

-- name: read_registry
-- The registered ones among the topics ($1), and in the same round trip the producer group ($2), as a row without a name.
SELECT name, message_type, partitions, selector, max_message_bytes
FROM outbox.topic
WHERE name = ANY ($1::text[])
UNION ALL
SELECT NULL, message_type, NULL, NULL, NULL
FROM outbox.producer_group
WHERE name = $2::text;

-- name: sends_normal_messages
-- Whether a group ($1) has sent normal messages lately: among the newest 50,000 messages of all. (No index finds the
-- normal messages of a group, and none is worth its cost: this is asked until the group is registered.)
SELECT EXISTS (
    SELECT FROM (SELECT m.producer_group, m.state, m.decided_at FROM outbox.message m
                 ORDER BY m.id DESC LIMIT 50000) newest
    WHERE newest.producer_group = $1::text AND newest.state = 'COMMITTED' AND newest.decided_at IS NULL
);

-- name: add_group
-- Registers a group ($1) with its type ($2, null: MIXED) unless it is there; a producer's rights are enough.
INSERT INTO outbox.producer_group (name, message_type)
VALUES ($1, coalesce($2::text, 'MIXED'))
ON CONFLICT (name) DO NOTHING
RETURNING name;

-- name: configure_group
-- Changes what is given ($3 …) of a group ($1) of this type ($2). Of the two check intervals, one that is not given
-- makes room for the other.
UPDATE outbox.producer_group
SET check_after = coalesce($3::interval, check_after),
    check_interval = least(coalesce($4::interval, check_interval), $5::interval),
    max_check_interval = greatest(coalesce($5::interval, max_check_interval), $4::interval),
    check_timeout = coalesce($6::interval, check_timeout),
    max_age = coalesce($7::interval, max_age),
    max_checks = coalesce($8::integer, max_checks),
    policy = coalesce($9::text, policy),
    workers = coalesce($10::integer, workers)
WHERE name = $1::text AND message_type = coalesce($2::text, message_type)
RETURNING name;

-- name: set_callback
-- How a group ($1) is asked from outside ($2, null: in process only), and the database role whose members alone may
-- decide its half messages ($3, null: every producer). Needs the right to update the table.
UPDATE outbox.producer_group SET callback = $2::jsonb, role = $3::text WHERE name = $1::text;

-- name: read_group
-- One producer group.
SELECT name, message_type, (extract(epoch FROM check_after) * 1000000::numeric)::bigint,
       (extract(epoch FROM check_interval) * 1000000::numeric)::bigint,
       (extract(epoch FROM max_check_interval) * 1000000::numeric)::bigint,
       (extract(epoch FROM check_timeout) * 1000000::numeric)::bigint,
       (extract(epoch FROM max_age) * 1000000::numeric)::bigint,
       max_checks, policy, workers
FROM outbox.producer_group
WHERE name = $1::text;
