-- Pausing topics. All statements that write raise outbox.topic_generation, by which the relays notice it.

-- name: pause
-- Pause a topic that is not paused.
UPDATE outbox.topic SET paused_at = clock_timestamp(), paused_by = outbox.actor(), pause_reason = %(reason)s
WHERE name = %(name)s AND paused_at IS NULL

-- name: resume
-- Let a paused topic go on, unless `outbox topic repartition` holds it. One that has grown pauses at growth no more.
UPDATE outbox.topic
SET paused_at = NULL, paused_by = NULL, pause_reason = NULL,
    pause_when_grown = pause_when_grown AND NOT coalesce(partitions_in_kafka > partitions, false)
WHERE name = %(name)s AND (paused_at IS NOT NULL OR (pause_when_grown AND partitions_in_kafka > partitions))
    AND repartition_to IS NULL

-- name: when_grown
-- Let a topic pause when it has more partitions in Kafka than are pinned, or not.
UPDATE outbox.topic SET pause_when_grown = %(pauses)s WHERE name = %(name)s AND pause_when_grown <> %(pauses)s

-- name: waiting
-- How many messages wait because their topic is parked.
SELECT coalesce(sum(w.messages), 0)::bigint
FROM outbox.parked_key k CROSS JOIN LATERAL (SELECT count(*) AS messages FROM outbox.waiting h WHERE h.parked = k.number) w
WHERE k.topic = %(name)s AND k.is_topic
