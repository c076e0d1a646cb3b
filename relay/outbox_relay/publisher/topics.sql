-- Topics as the relay needs them.

-- name: topics
-- The pinned partition count, the selector and the size limit of topics.
SELECT name, partitions, selector, max_message_bytes FROM outbox.topic WHERE name = ANY (%(names)s::text[])

-- name: pin
-- Register topics that nobody registered, with the partition counts that Kafka has now.
INSERT INTO outbox.topic (name, partitions, max_message_bytes)
SELECT * FROM unnest(%(names)s::text[], %(partitions)s::integer[], %(limits)s::integer[])
ON CONFLICT (name) DO NOTHING
