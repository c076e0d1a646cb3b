-- Which messages the benchmark of look-ups searches for.

-- name: rare
-- A message whose key no other one has, in front of the history.
INSERT INTO outbox.message (topic, key, body) VALUES (%(topic)s, 'rare', '{}')
RETURNING id, key

-- name: span
-- The first and the last id.
SELECT min(id), max(id) FROM outbox.message

-- name: known
-- What is known of the messages with these ids; an id may be missing.
SELECT id, message_id, topic, key, index_keys, tags, born_at FROM outbox.message WHERE id = ANY(%(ids)s) ORDER BY id
