-- The topic registry, as operators use it.

-- name: all
-- Every registered topic.
SELECT name, message_type, partitions, selector, max_message_bytes, registered_at, paused_at, paused_by, pause_reason,
       repartition_to, repartition_groups, pause_when_grown, skip_ahead
FROM outbox.topic ORDER BY name

-- name: get
-- One registered topic.
SELECT name, message_type, partitions, selector, max_message_bytes, registered_at, paused_at, paused_by, pause_reason,
       repartition_to, repartition_groups, pause_when_grown, skip_ahead
FROM outbox.topic WHERE name = %(name)s

-- name: lock
-- One topic, for this transaction alone to change.
SELECT name, message_type, partitions, selector, max_message_bytes, registered_at, paused_at, paused_by, pause_reason,
       repartition_to, repartition_groups, pause_when_grown, skip_ahead
FROM outbox.topic WHERE name = %(name)s FOR UPDATE
