-- Runs of listeners that may end the process that they run in. See outbox/inbox/suspects.py.

-- Who reads a partition. A member removes its name when it gives the partition back; one that was killed leaves it.
ALTER TABLE outbox.inbox_position ADD COLUMN reader text;
COMMENT ON COLUMN outbox.inbox_position.reader IS 'the member that reads it, or that ended without giving it back';

-- Runs that began, counted in a transaction of their own; only of messages that may have ended a process, of retries, and of the first
-- runs of a member. A run that ends removes its row, or is done by the inbox.
CREATE TABLE outbox.inbox_run (
    group_id   integer     NOT NULL,
    topic_id   integer     NOT NULL,
    part       integer     NOT NULL,
    off        bigint      NOT NULL,
    message_id uuid        NOT NULL,
    born_on    date        NOT NULL,
    is_retry   boolean     NOT NULL,
    member     text        NOT NULL,
    runs       integer     NOT NULL DEFAULT 1,
    began_at   timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (group_id, topic_id, part, off)
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox.inbox_run IS 'Runs of listeners that began, and may have ended with their process.';
COMMENT ON COLUMN outbox.inbox_run.runs IS 'in how many processes one after the other it began, and did not end';

DO $$
DECLARE
    wanted text;
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) 'outbox_consumer'::pg_catalog.name) THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.inbox_run TO outbox_consumer;
        GRANT UPDATE (reader) ON outbox.inbox_position TO outbox_consumer;
    END IF;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) 'outbox_operator'::pg_catalog.name) THEN
        GRANT DELETE ON outbox.inbox_run TO outbox_operator;  -- with a dead letter that is discarded
    END IF;
    FOREACH wanted IN ARRAY ARRAY['outbox_reader', 'outbox_operator'] LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) wanted::pg_catalog.name
        );
        EXECUTE pg_catalog.format('GRANT SELECT ON outbox.inbox_run TO %I', wanted);
    END LOOP;
END $$;
