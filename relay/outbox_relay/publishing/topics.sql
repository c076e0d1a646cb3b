-- Topics as the relay needs them.

-- name: topic
-- The pinned partition count, the selector and the size limit of one topic.
SELECT partitions, selector, max_message_bytes FROM outbox.topic WHERE name = %(name)s

-- name: pin
-- Register a topic that nobody registered, with the partition count that Kafka has now.
INSERT INTO outbox.topic (name, partitions, max_message_bytes)
VALUES (%(name)s, %(partitions)s, %(max_message_bytes)s)
ON CONFLICT (name) DO NOTHING
