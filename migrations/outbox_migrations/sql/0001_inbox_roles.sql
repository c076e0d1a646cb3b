-- Least privilege: an application that consumes is granted outbox_consumer. Readers and operators see what is parked and why,
-- never a body or a header. Operators try dead letters again and discard
-- them, and reset positions.
REVOKE ALL ON FUNCTION outbox.ensure_inbox_partition(date) FROM PUBLIC;
DO $$
DECLARE
    wanted text;
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_consumer') THEN
        GRANT SELECT ON outbox.consumer_group, outbox.consumer_member, outbox.inbox_topic, outbox.inbox,
            outbox.inbox_floor, outbox.inbox_position, outbox.inbox_held_key, outbox.inbox_parked, outbox.topic
            TO outbox_consumer;
        GRANT INSERT (name, subscription, orderly), UPDATE (subscription, orderly, dead_letter_topic)
            ON outbox.consumer_group TO outbox_consumer;
        GRANT INSERT, UPDATE, DELETE ON outbox.consumer_member TO outbox_consumer;
        GRANT INSERT (name, kafka_id) ON outbox.inbox_topic TO outbox_consumer;
        GRANT INSERT ON outbox.inbox TO outbox_consumer;
        GRANT INSERT, UPDATE (next_off, moved_at) ON outbox.inbox_position TO outbox_consumer;
        GRANT INSERT, UPDATE (since), DELETE ON outbox.inbox_held_key TO outbox_consumer;
        GRANT INSERT, UPDATE, DELETE ON outbox.inbox_parked TO outbox_consumer;
        GRANT SELECT, INSERT, UPDATE (after_key, after_position, parked, finished_at) ON outbox.inbox_replay
            TO outbox_consumer;
        GRANT EXECUTE ON FUNCTION outbox.ensure_inbox_partition(date) TO outbox_consumer;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_operator') THEN
        GRANT UPDATE (state, due_at, attempts), DELETE ON outbox.inbox_parked TO outbox_operator;
        GRANT INSERT (group_id, topic_id, part, next_off), UPDATE (next_off, generation, moved_at)
            ON outbox.inbox_position TO outbox_operator;
        -- To lock the row of a group while its positions are reset.
        GRANT UPDATE (registered_at) ON outbox.consumer_group TO outbox_operator;
        GRANT INSERT (group_id, topic_id, order_key), UPDATE (since), DELETE ON outbox.inbox_held_key TO outbox_operator;
    END IF;
    FOREACH wanted IN ARRAY ARRAY['outbox_reader', 'outbox_operator'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = wanted);
        EXECUTE format('GRANT SELECT ON outbox.consumer_group, outbox.consumer_member, outbox.inbox_topic, outbox.inbox,
                        outbox.inbox_floor, outbox.inbox_position, outbox.inbox_held_key, outbox.inbox_replay
                        TO %I', wanted);
        EXECUTE format('GRANT SELECT (id, group_id, message_id, born_on, topic_id, part, off, digest, order_key, key,
                        published_at, state, attempts, due_at, fingerprint, error, failed_at, parked_at,
                        undecided, replay, is_copied, copy_error)
                        ON outbox.inbox_parked TO %I', wanted);
    END LOOP;
END $$;
