-- Topics as the relay needs them.

-- name: topics
-- The pinned partition count, the selector, the size limit, the count last seen in Kafka, why it is paused, and whether it skips ahead, of topics.
SELECT name, partitions, selector, max_message_bytes, partitions_in_kafka,
       CASE WHEN paused_at IS NOT NULL THEN format('paused by %%s: %%s', paused_by, pause_reason)
            WHEN pause_when_grown AND partitions_in_kafka > partitions
            THEN format('paused, because Kafka has %%s partitions of it and %%s are pinned', partitions_in_kafka, partitions) END,
       skip_ahead
FROM outbox.topic WHERE name = ANY (%(names)s::text[])

-- name: pin
-- Register topics that nobody registered, with the partition counts that Kafka has now.
INSERT INTO outbox.topic (name, partitions, max_message_bytes, partitions_in_kafka)
SELECT g.name, g.partitions, g.max_bytes, g.partitions
FROM unnest(%(names)s::text[], %(partitions)s::integer[], %(limits)s::integer[]) AS g (name, partitions, max_bytes)
ON CONFLICT (name) DO NOTHING

-- name: seen
-- Note the partition counts that Kafka has now. A row that an operator is changing is left for the next time: nothing
-- is published while this waits.
WITH free AS MATERIALIZED (
    SELECT o.name FROM outbox.topic o WHERE o.name = ANY (%(names)s::text[]) FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE outbox.topic t SET partitions_in_kafka = g.partitions
FROM free f JOIN unnest(%(names)s::text[], %(partitions)s::integer[]) AS g (name, partitions) ON g.name = f.name
WHERE t.name = f.name AND t.partitions_in_kafka IS DISTINCT FROM g.partitions
