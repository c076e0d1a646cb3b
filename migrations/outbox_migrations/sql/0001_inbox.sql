-- Consumers: what a group has taken over for good, where it is in each partition, and what it failed with.
-- These tables belong to the database of the consumer, next to the rows that its handlers write. Nothing here is needed
-- where messages are only sent.

-- Consumer groups, and how they read. A group has one subscription and one kind of listener: members that differ would
-- skip messages of each other.
CREATE TABLE outbox.consumer_group (
    id            integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name          text        NOT NULL UNIQUE CHECK (length(name) BETWEEN 1 AND 255)
                              CHECK (name !~ '[[:space:][:cntrl:]]'),
    subscription  jsonb       NOT NULL CHECK (jsonb_typeof(subscription) = 'object'),
    orderly       boolean     NOT NULL,
    dead_letter_topic text,
    registered_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON COLUMN outbox.consumer_group.subscription IS 'topic and tag expression of each subscription';
COMMENT ON COLUMN outbox.consumer_group.dead_letter_topic IS 'where a copy of each dead letter is sent; null: nowhere';

-- Members that run. A row older than a minute is of a member that died.
CREATE TABLE outbox.consumer_member (
    group_id     integer     NOT NULL REFERENCES outbox.consumer_group,
    member       text        NOT NULL,
    subscription jsonb       NOT NULL,
    orderly      boolean     NOT NULL,
    started_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    partitions   integer     NOT NULL DEFAULT 0,
    idle_since   timestamptz DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, member)
) WITH (fillfactor = 50);
COMMENT ON COLUMN outbox.consumer_member.partitions IS 'how many partitions it reads';
COMMENT ON COLUMN outbox.consumer_member.idle_since IS 'since when it has read none; null: it reads some';

-- Topics by Kafka's own id: one that was deleted and made again under its name is another topic.
CREATE TABLE outbox.inbox_topic (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name     text    NOT NULL,
    kafka_id text    NOT NULL UNIQUE
);
COMMENT ON COLUMN outbox.inbox_topic.kafka_id IS 'id of the cluster, a slash, and the id of the topic';

-- A row means that the group has taken the message over for good: its effect is committed with the row, or the message is
-- parked with it. So the row is inserted first, in the transaction of the handler, and is the lock between two members that
-- were delivered the same message. Rows are never updated.
-- A unique key must contain the partition key, and stays unique only if that is a function of the message: the day on which
-- the message was born (UTC), never the day on which it arrived. Days far from today go to the DEFAULT partition.
CREATE TABLE outbox.inbox (
    group_id   integer     NOT NULL,
    message_id uuid        NOT NULL,
    born_on    date        NOT NULL,
    topic_id   integer     NOT NULL,
    part       integer     NOT NULL,
    off        bigint      NOT NULL,
    digest     bytea       NOT NULL,
    handled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, message_id, born_on)
) PARTITION BY RANGE (born_on);
CREATE TABLE outbox.inbox_default PARTITION OF outbox.inbox DEFAULT;
-- The first day of birth of which a group still has all its rows: partitions before it may be dropped, and a missing row then
-- proves nothing. A message that was born before it is set aside. Raised before a partition is dropped; it never goes down.
CREATE TABLE outbox.inbox_floor (
    group_id    integer     PRIMARY KEY,
    born_before date        NOT NULL CHECK (isfinite(born_before)),
    raised_at   timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.inbox_floor IS 'Messages of a group that were born before this day may have been forgotten.';
COMMENT ON TABLE outbox.inbox IS 'One row per message that a consumer group has taken over for good.';
COMMENT ON COLUMN outbox.inbox.digest IS 'of key and body: an id that is used again with another body is found by it';

-- Offsets, kept here as well as in Kafka, and always written here first: Kafka's expire, and are not restored with this
-- database. next_off only grows; a reset by an operator counts "generation" up, so that members that run then cannot undo it.
CREATE TABLE outbox.inbox_position (
    group_id   integer     NOT NULL,
    topic_id   integer     NOT NULL,
    part       integer     NOT NULL,
    next_off   bigint      NOT NULL CHECK (next_off >= 0),
    generation integer     NOT NULL DEFAULT 0,
    moved_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, topic_id, part)
) WITH (fillfactor = 20);

-- Order keys of orderly groups that have a message parked: later messages of the key are parked behind it. The row is locked
-- by who parks a message behind others, and by who takes the last one out.
CREATE TABLE outbox.inbox_held_key (
    group_id  integer     NOT NULL,
    topic_id  integer     NOT NULL,
    order_key bytea       NOT NULL,
    since     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (group_id, topic_id, order_key)
);

-- Messages that failed, with all that is needed to run them again. A retry waits until it is due. In an orderly group only the
-- first message of a held key is in state retry or dead, and those behind it are waiting; ids are taken while the held key is
-- locked, so they are in the order of the key. A dead message has used up its retries and waits for an operator.
CREATE TABLE outbox.inbox_parked (
    id            bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id      integer     NOT NULL,
    message_id    uuid        NOT NULL,
    born_on       date        NOT NULL,
    topic_id      integer     NOT NULL,
    part          integer     NOT NULL,
    off           bigint      NOT NULL,
    digest        bytea       NOT NULL,
    order_key     bytea,
    key           bytea,
    body          bytea,
    header_names  text[]      NOT NULL,
    header_values bytea[]     NOT NULL,
    published_at  timestamptz NOT NULL,
    state         text        NOT NULL CHECK (state IN ('retry', 'waiting', 'dead')),
    attempts      integer     NOT NULL CHECK (attempts >= 0),
    due_at        timestamptz,
    fingerprint   text,
    error         text,
    failed_at     timestamptz,
    parked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    undecided     boolean     NOT NULL DEFAULT false,
    replay        integer,
    is_copied     boolean     NOT NULL DEFAULT false,
    copy_error    text,
    CONSTRAINT inbox_parked_once UNIQUE (group_id, message_id, digest),
    CONSTRAINT inbox_parked_retry_is_due CHECK ((state = 'retry') = (due_at IS NOT NULL)),
    CONSTRAINT inbox_parked_behind_a_key CHECK (state <> 'waiting' OR order_key IS NOT NULL),
    CONSTRAINT inbox_parked_headers_are_pairs CHECK (cardinality(header_names) = cardinality(header_values))
);
CREATE INDEX inbox_parked_due ON outbox.inbox_parked (group_id, due_at) WHERE state = 'retry';
CREATE INDEX inbox_parked_replay ON outbox.inbox_parked (replay, state) WHERE replay IS NOT NULL;
CREATE INDEX inbox_parked_key ON outbox.inbox_parked (group_id, topic_id, order_key, id) WHERE order_key IS NOT NULL;
-- At most one message of a key is tried at a time.
CREATE UNIQUE INDEX inbox_parked_head ON outbox.inbox_parked (group_id, topic_id, order_key)
    WHERE order_key IS NOT NULL AND state IN ('retry', 'dead');
COMMENT ON TABLE outbox.inbox_parked IS 'Messages that a consumer group failed with: retries, what waits behind them, dead letters.';
COMMENT ON COLUMN outbox.inbox_parked.undecided IS 'the header filter could not decide: it is asked before each retry';
COMMENT ON COLUMN outbox.inbox_parked.replay IS 'the replay that has parked the message; null: a listener failed with it';
COMMENT ON COLUMN outbox.inbox_parked.is_copied IS 'it was sent to the dead letter topic of its group, or could not be';
COMMENT ON COLUMN outbox.inbox_parked.copy_error IS 'why no copy could be sent to the dead letter topic';
COMMENT ON COLUMN outbox.inbox_parked.order_key IS 'the key that is held by this message; null: it holds up no other';

-- Old messages that an operator gives to one group again. They are parked in the order of (order key, position), a key at a time,
-- in one transaction with the place up to which that is done; so a replay that was interrupted goes on there.
CREATE TABLE outbox.inbox_replay (
    id             integer     GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id       integer     NOT NULL REFERENCES outbox.consumer_group,
    topic_id       integer     NOT NULL REFERENCES outbox.inbox_topic,
    selection      jsonb       NOT NULL,
    source         text        NOT NULL,
    again          boolean     NOT NULL,
    orderly        boolean     NOT NULL,
    published_before timestamptz NOT NULL,
    after_key      bytea,
    after_position bigint,
    parked         integer     NOT NULL DEFAULT 0,
    actor          text        NOT NULL DEFAULT session_user,
    started_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at    timestamptz
);
-- One replay of a group at a time.
CREATE UNIQUE INDEX inbox_replay_open ON outbox.inbox_replay (group_id) WHERE finished_at IS NULL;
COMMENT ON TABLE outbox.inbox_replay IS 'Replays of old messages to one consumer group, and how far they are.';
COMMENT ON COLUMN outbox.inbox_replay.again IS 'also messages that the group has applied';
COMMENT ON COLUMN outbox.inbox_replay.source IS 'the database or file of the messages; another one is refused when it goes on';

-- A session that adds partitions locks this table; it holds no rows (see outbox.partition_lock).
CREATE TABLE outbox.inbox_partition_lock ();

-- Makes the partition of one day of birth, unless it is there; returns whether the day has one. A day far from today has none,
-- and neither has one of which the DEFAULT partition holds rows: all rows of a day are in one table, always, and so an id is
-- unique. lock_timeout bounds the wait for sessions that are writing to the DEFAULT partition; the caller tries again.
CREATE FUNCTION outbox.ensure_inbox_partition(day date) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '2s' AS $$
DECLARE
    most_partitions CONSTANT integer := 1000;
    child text;
BEGIN
    IF NOT isfinite(day) OR day < current_date - 3650 OR day > current_date + 8 THEN
        RETURN false;
    END IF;
    child := 'inbox_d' || to_char(day, 'YYYYMMDD');
    IF to_regclass(format('outbox.%I', child)) IS NOT NULL THEN
        RETURN true;
    END IF;
    -- One creator at a time. The second one checks again once the first has committed.
    LOCK TABLE outbox.inbox_partition_lock IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(format('outbox.%I', child)) IS NOT NULL THEN
        RETURN true;
    END IF;
    IF (SELECT count(*) FROM pg_inherits i WHERE i.inhparent = 'outbox.inbox'::regclass) >= most_partitions THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.inbox INCLUDING ALL)', child);
    EXECUTE format('ALTER TABLE outbox.inbox ATTACH PARTITION outbox.%I FOR VALUES FROM (%L) TO (%L)',
                   child, day, day + 1);
    RETURN true;
EXCEPTION
    WHEN check_violation THEN RETURN false;  -- the DEFAULT partition holds rows of this day
END $$;

-- Refuses to go on unless the session is still in this transaction: the last statement before the commit of a handler's
-- transaction. A handler that committed or rolled back has parted its writes from the row of the inbox.
CREATE FUNCTION outbox.require_transaction(xid xid8) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF pg_current_xact_id_if_assigned() IS DISTINCT FROM xid THEN
        RAISE EXCEPTION 'the listener ended the transaction that it was given'
            USING ERRCODE = 'invalid_transaction_state', CONSTRAINT = 'listener_keeps_transaction',
                  HINT = 'Leave out commit() and rollback() in the listener: the consumer commits after it returns.';
    END IF;
END $$;
