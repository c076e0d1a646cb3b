-- Exactly-once delivery: what relays send in transactions of Kafka. See docs/adr/0028. outbox.lane.mode is how a lane's last owner
-- delivered.

-- The shards whose messages go to Kafka in transactions.
CREATE TABLE outbox.exactly_once (
    shard   text       PRIMARY KEY CHECK (shard ~ '^[1-9][0-9]*/[1-9][0-9]*$'),
    name    text       NOT NULL,
    lanes   smallint[] NOT NULL,
    is_over boolean    NOT NULL DEFAULT false,
    not_proven_since timestamptz
);
COMMENT ON TABLE outbox.exactly_once IS 'The shards whose messages go to Kafka in transactions.';
COMMENT ON COLUMN outbox.exactly_once.name IS
    'the consumer group whose offsets are numbers of batches; with -0 and -1, the transactional ids of the two producers';
COMMENT ON COLUMN outbox.exactly_once.is_over IS 'they do no more; Kafka has records of transactions that were aborted';
COMMENT ON COLUMN outbox.exactly_once.not_proven_since IS 'Kafka has another batch than the intents: nothing of the shard is published';

-- What each batch has that Kafka may have: written before it is sent. The last committed one stays. By batch first: those that are deleted
-- are named, and a held snapshot keeps them in the index. Not a foreign key: each batch would
-- lock the row of its shard.
CREATE TABLE outbox.intent (
    shard      text      NOT NULL,
    batch      bigint    NOT NULL,
    digest     text      NOT NULL,
    ids        bigint[]  NOT NULL,
    positions  bigint[]  NOT NULL,
    partitions integer[] NOT NULL,
    PRIMARY KEY (batch, shard),
    CONSTRAINT intent_is_complete CHECK (cardinality(ids) = cardinality(positions) AND cardinality(ids) = cardinality(partitions))
);
ALTER TABLE outbox.intent ALTER ids SET STORAGE EXTERNAL, ALTER positions SET STORAGE EXTERNAL, ALTER partitions SET STORAGE EXTERNAL;
COMMENT ON TABLE outbox.intent IS 'Batches of messages that Kafka may have, each one transaction; the last one that it has among them.';
COMMENT ON COLUMN outbox.intent.batch IS 'their number, which the transaction commits as an offset of the group';
COMMENT ON COLUMN outbox.intent.digest IS 'a hash of the ids of their messages, which is the offset''s metadata';

DO $$
DECLARE
    wanted text;
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) 'outbox_relay'::pg_catalog.name) THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON outbox.exactly_once, outbox.intent TO outbox_relay;
    END IF;
    FOREACH wanted IN ARRAY ARRAY['outbox_reader', 'outbox_operator'] LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) wanted::pg_catalog.name
        );
        EXECUTE pg_catalog.format('GRANT SELECT ON outbox.exactly_once, outbox.intent TO %I', wanted);
    END LOOP;
END $$;
