-- The topic registry as the library uses it.

-- name: read_topics
-- The registered ones among the names; one round trip for all topics of a call.
SELECT name, message_type, partitions, selector, max_message_bytes, skip_ahead
FROM outbox.topic
WHERE name = ANY ($1::text[]);

-- name: register_topic
-- Adds a topic ($1), or changes what is given of a registered one ($2 type, $5 size limit, $9 skip ahead; null: kept). The partition
-- count ($3) and the selector ($4; null: kept, '': none) decide where a key goes: they are only changed when that is
-- asked for ($6). $7: only add it. $8: the size limit of a new one that gives none. No FIFO topic skips ahead. No row: nothing was written.
INSERT INTO outbox.topic AS t (name, message_type, partitions, selector, max_message_bytes, skip_ahead)
VALUES ($1::text, coalesce($2::text, 'MIXED'), $3::integer, nullif($4::text, ''), coalesce($5::integer, $8::integer),
        coalesce($9::boolean, false))
ON CONFLICT (name) DO UPDATE
    SET message_type = coalesce($2::text, t.message_type),
        partitions = $3::integer,
        selector = CASE WHEN $4::text IS NULL THEN t.selector ELSE nullif($4::text, '') END,
        max_message_bytes = coalesce($5::integer, t.max_message_bytes),
        skip_ahead = coalesce($9::boolean, t.skip_ahead)
    WHERE NOT $7::boolean
        AND ($6::boolean OR t.partitions = $3::integer
             AND ($4::text IS NULL OR coalesce(nullif($4::text, ''), 'murmur2') = coalesce(t.selector, 'murmur2')))
        AND NOT (coalesce($9::boolean, t.skip_ahead) AND coalesce($2::text, t.message_type) = 'FIFO')
RETURNING name, message_type, partitions, selector, max_message_bytes, skip_ahead;
