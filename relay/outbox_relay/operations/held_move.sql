-- The steps of `outbox topic repartition --wait-for-group`: one statement each. All raise outbox.topic_generation, by
-- which the relays notice them. The time of the pause distinguishes one move from another of the same topic.

-- name: hold
-- Hold a topic that still has the count that was read.
UPDATE outbox.topic
SET paused_at = clock_timestamp(), paused_by = outbox.actor(), pause_reason = %(reason)s,
    repartition_to = %(to)s, repartition_groups = %(groups)s::text[]
WHERE name = %(name)s AND partitions = %(partitions)s AND paused_at IS NULL

-- name: switch
-- Give a held topic its new count, and let it go on.
UPDATE outbox.topic
SET partitions = repartition_to,
    paused_at = NULL, paused_by = NULL, pause_reason = NULL, repartition_to = NULL, repartition_groups = NULL
WHERE name = %(name)s AND paused_at = %(held_at)s AND repartition_to IS NOT NULL

-- name: abort
-- Let a held topic go on as it is.
UPDATE outbox.topic
SET paused_at = NULL, paused_by = NULL, pause_reason = NULL, repartition_to = NULL, repartition_groups = NULL
WHERE name = %(name)s AND repartition_to IS NOT NULL
