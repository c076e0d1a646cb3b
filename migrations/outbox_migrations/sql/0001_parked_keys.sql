-- Parked keys: order keys (or explicit queues) of a topic with a message that cannot be published. The messages behind it
-- are held in outbox.waiting, in their order; all other keys flow. A message without key and queue is the only one of its
-- row. "number" is the id of the message that parked the key, "head" that of the one that fails now. Only the owner of the
-- lane adds and removes rows. Operators set "requested_at": the owner then publishes head and held messages in order.
-- "draining_at" is set, and committed, before it reads them, and cleared with the record of what came of it: meanwhile
-- nobody can tell whether they are being published; "draining_to" is the last place among those it reads.
-- A whole topic is parked in a lane by a row without key and queue, whose number is minus the id of the message that was the
-- first to wait: Kafka does not take the topic, or it is paused. Its messages wait with the reason "parked".
CREATE TABLE outbox.parked_key (
    number       bigint      PRIMARY KEY,
    lane         smallint    NOT NULL,
    topic        text        NOT NULL,
    queue        integer,
    order_key    bytea,
    head         bigint      NOT NULL,
    error        text        NOT NULL,
    since        timestamptz NOT NULL DEFAULT clock_timestamp(),
    tries        integer     NOT NULL DEFAULT 0,
    requested_at timestamptz,
    requested_by text,
    draining_at  timestamptz,
    draining_to  bigint,
    is_topic     boolean     NOT NULL GENERATED ALWAYS AS (number < 0) STORED
);
CREATE UNIQUE INDEX parked_key_once
    ON outbox.parked_key (lane, topic, coalesce(queue, -1), coalesce(sha256(order_key), ''))
    WHERE queue IS NOT NULL OR order_key IS NOT NULL;
CREATE UNIQUE INDEX parked_topic_once ON outbox.parked_key (lane, topic) WHERE is_topic;
CREATE INDEX parked_key_lane ON outbox.parked_key (lane);
CREATE INDEX parked_key_requested ON outbox.parked_key (lane, requested_at) WHERE requested_at IS NOT NULL;

-- Failed and held messages belong to a parked key: "parked" is its number, "place" the message's position, and "in_doubt"
-- states that Kafka may have it, because an acknowledgement was lost.
ALTER TABLE outbox.waiting
    ADD COLUMN parked   bigint,
    ADD COLUMN place    bigint,
    ADD COLUMN in_doubt boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT waiting_failure_has_a_key CHECK (reason <> 'failed' OR parked IS NOT NULL),
    ADD CONSTRAINT waiting_parked_has_a_place CHECK ((parked IS NULL) = (place IS NULL));
CREATE INDEX waiting_parked ON outbox.waiting (parked, place) WHERE parked IS NOT NULL;
CREATE INDEX waiting_place ON outbox.waiting (place) WHERE place IS NOT NULL;
CREATE INDEX waiting_failed ON outbox.waiting (id) WHERE reason IN ('failed', 'expired');

-- Refuses a claim that names a parked key without a row: nobody would ever publish it. No foreign key, because its check
-- waits for a session that holds the key's row FOR UPDATE, and a claim waits for none.
CREATE FUNCTION outbox.refuse_claim(number bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'messages cannot wait for the parked key %: it has no row in outbox.parked_key', number
        USING ERRCODE = 'foreign_key_violation',
              HINT = 'This is a fault of the relay: report it. Nothing was written; the relay reads its parked keys again.';
END $$;
