-- Which records of Kafka have a message here.

-- name: prefer_indexes
-- For this session: no plan that reads whole tables because statistics are young.
SELECT set_config('enable_seqscan', 'off', false)

-- name: topics
-- The topics that messages may go to: those that are registered, and those of the newest messages, registered or not.
SELECT t.name FROM outbox.topic t
UNION
SELECT n.topic FROM (SELECT m.topic FROM outbox.message m ORDER BY m.id DESC LIMIT 10000) n
ORDER BY 1

-- name: states
-- What is here of these messages; those of which nothing is here are left out.
SELECT m.message_id, m.state
FROM unnest(%(ids)s::bigint[], %(message_ids)s::uuid[]) r (id, message_id)
JOIN outbox.message m ON m.id = r.id AND m.message_id = r.message_id

-- name: states_of_foreign
-- The same for ids that applications gave their messages.
SELECT m.message_id, m.state
FROM unnest(%(message_ids)s::uuid[]) r (message_id)
JOIN outbox.message m ON m.message_id = r.message_id AND get_byte(uuid_send(m.message_id), 6) >> 4 <> 8

-- name: first_id
-- The first id that the history still has; null: there is no partition.
SELECT min(lower) FROM outbox.partition
