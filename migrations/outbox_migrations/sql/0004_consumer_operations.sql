-- What operators and members of consumer groups state of each other, beside positions.

ALTER TABLE outbox.consumer_member ADD COLUMN full_keys integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN outbox.consumer_member.full_keys IS
    'held keys whose later messages wait in Kafka, because as many wait here as may';

-- Pauses of a consumer group, or of a topic in it. Rows stay when a pause has ended: they are the audit of who paused what, and why.
CREATE TABLE outbox.consumer_pause (
    group_id   integer     NOT NULL,
    topic      text        NOT NULL,
    reason     text        NOT NULL CHECK (pg_catalog.length(reason) OPERATOR(pg_catalog.>=) 1
                                           AND pg_catalog.length(reason) OPERATOR(pg_catalog.<=) 500),
    paused_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    paused_by  text        NOT NULL DEFAULT outbox.actor(),
    resumed_at timestamptz,
    resumed_by text        CHECK ((resumed_at IS NULL) OPERATOR(pg_catalog.=) (resumed_by IS NULL))
);
CREATE UNIQUE INDEX consumer_pause_once ON outbox.consumer_pause (group_id, topic) WHERE resumed_at IS NULL;
COMMENT ON TABLE outbox.consumer_pause IS 'Pauses of consumer groups, and of topics in them; also those that have ended.';
COMMENT ON COLUMN outbox.consumer_pause.topic IS 'a topic; empty: all of the group';

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_consumer', 'outbox_operator', 'outbox_reader'] LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) wanted::pg_catalog.name
        );
        EXECUTE pg_catalog.format('GRANT SELECT ON outbox.consumer_pause TO %I', wanted);
        CONTINUE WHEN wanted OPERATOR(pg_catalog.=) 'outbox_reader';
        EXECUTE pg_catalog.format('GRANT INSERT (group_id, topic, reason), UPDATE (resumed_at, resumed_by)
                                   ON outbox.consumer_pause TO %I', wanted);
    END LOOP;
END $$;
