-- Pausing topics. Both statements raise outbox.topic_generation, by which the relays notice it.

-- name: pause
-- Pause a topic that is not paused.
UPDATE outbox.topic SET paused_at = clock_timestamp(), paused_by = outbox.actor(), pause_reason = %(reason)s
WHERE name = %(name)s AND paused_at IS NULL

-- name: resume
-- Let a paused topic go on, unless `outbox topic repartition` holds it.
UPDATE outbox.topic SET paused_at = NULL, paused_by = NULL, pause_reason = NULL
WHERE name = %(name)s AND paused_at IS NOT NULL AND repartition_to IS NULL

-- name: waiting
-- How many messages wait because their topic is parked.
SELECT coalesce(sum(w.messages), 0)::bigint
FROM outbox.parked_key k CROSS JOIN LATERAL (SELECT count(*) AS messages FROM outbox.waiting h WHERE h.parked = k.number) w
WHERE k.topic = %(name)s AND k.is_topic
