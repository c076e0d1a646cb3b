-- The topic registry, as operators use it.

-- name: all
-- Every registered topic.
SELECT name, message_type, partitions, selector, max_message_bytes, registered_at
FROM outbox.topic ORDER BY name

-- name: get
-- One registered topic.
SELECT name, message_type, partitions, selector, max_message_bytes, registered_at
FROM outbox.topic WHERE name = %(name)s

-- name: add
-- Register a topic. No row: somebody has registered it (the relay does, at a topic's first message).
INSERT INTO outbox.topic (name, message_type, partitions, selector, max_message_bytes)
VALUES (%(name)s, %(message_type)s, %(partitions)s, %(selector)s, %(max_message_bytes)s)
ON CONFLICT (name) DO NOTHING
RETURNING name, message_type, partitions, selector, max_message_bytes, registered_at

-- name: change
-- Change what was read before; no row: somebody else has changed it in between.
UPDATE outbox.topic
SET message_type = %(message_type)s, partitions = %(partitions)s, selector = %(selector)s,
    max_message_bytes = %(max_message_bytes)s
WHERE name = %(name)s AND message_type = %(old_message_type)s AND partitions = %(old_partitions)s
    AND selector IS NOT DISTINCT FROM %(old_selector)s AND max_message_bytes = %(old_max_message_bytes)s
RETURNING name, message_type, partitions, selector, max_message_bytes, registered_at
