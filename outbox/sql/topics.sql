-- The topic registry as the library uses it.

-- name: read_topics
-- The registered ones among the names; one round trip for all topics of a call.
SELECT name, message_type, partitions, selector, max_message_bytes
FROM outbox.topic
WHERE name = ANY ($1::text[]);

-- name: register_topic
-- Adds a topic or changes it, but for its partition count: then no row is returned, and nothing is written.
INSERT INTO outbox.topic AS t (name, message_type, partitions, selector, max_message_bytes)
VALUES ($1, $2, $3::integer, $4, $5::integer)
ON CONFLICT (name) DO UPDATE
    SET message_type = EXCLUDED.message_type,
        selector = EXCLUDED.selector,
        max_message_bytes = EXCLUDED.max_message_bytes
    WHERE t.partitions = EXCLUDED.partitions
RETURNING name, message_type, partitions, selector, max_message_bytes;
