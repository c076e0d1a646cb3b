-- The outbox: one table of messages, and beside it small tables that each have one job.
-- Everything lives in the schema "outbox"; a host application's tables are never touched.

COMMENT ON SCHEMA outbox IS 'Transactional outbox: messages written with business rows, published to Kafka by the relay.';

-- Positions order the messages of one order key. CACHE must stay 1: a session that serves positions from a
-- stale block would place a later message before an earlier one.
CREATE SEQUENCE outbox.position AS bigint CACHE 1;
-- Epochs name one relay's ownership of lanes; a new owner always has a higher one.
CREATE SEQUENCE outbox.epoch AS bigint CACHE 1;


-- States ----------------------------------------------------------------------------------------------------

-- The state machine, written down once. A state that a message reaches without a predecessor has NULL.
-- PUBLISHED is not stored: it is a COMMITTED message with a publication (see outbox.message_status).
CREATE TABLE outbox.transition (
    from_state text,
    to_state   text NOT NULL,
    meaning    text NOT NULL
);
CREATE UNIQUE INDEX transition_once ON outbox.transition (coalesce(from_state, ''), to_state);
INSERT INTO outbox.transition (from_state, to_state, meaning) VALUES
    (NULL,        'COMMITTED',   'sent inside the business transaction'),
    (NULL,        'UNKNOWN',     'a half message: durable, undecided'),
    ('UNKNOWN',   'COMMITTED',   'decided: publish'),
    ('UNKNOWN',   'ROLLED_BACK', 'decided: never publish'),
    ('UNKNOWN',   'EXHAUSTED',   'checks or age used up, left to an operator'),
    ('EXHAUSTED', 'COMMITTED',   'an operator decided: publish'),
    ('EXHAUSTED', 'ROLLED_BACK', 'an operator decided: never publish'),
    ('COMMITTED', 'CANCELLED',   'cancelled before delivery'),
    ('COMMITTED', 'DEAD',        'cannot be published'),
    ('COMMITTED', 'SKIPPED',     'an operator gives up what may be in Kafka already'),
    ('DEAD',      'COMMITTED',   'an operator retries'),
    ('DEAD',      'SKIPPED',     'an operator gives up');


-- Pure functions --------------------------------------------------------------------------------------------

-- A message id made here carries the row's id in its first 48 bits and is of version 8 (RFC 9562: custom), so
-- that looking a message up by its message id needs no second index. The remaining 62 bits are random: ids are
-- issued again after a fail-over, message ids are not.
CREATE FUNCTION outbox.new_message_id(id bigint) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL SAFE
    RETURN (lpad(to_hex(id), 12, '0') || '8' || substr(gen_random_uuid()::text, 16))::uuid;

-- The row's id inside a message id, or NULL when the id was made elsewhere.
CREATE FUNCTION outbox.id_of(message_id uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN substr(message_id::text, 15, 1) = '8'
        THEN ('x' || substr(message_id::text, 1, 8) || substr(message_id::text, 10, 4))::bit(48)::bigint END;


-- The role that acts: the one of SET ROLE, else the login. In a function with the owner's rights current_user is the
-- owner; the setting "role" is not changed by that.
CREATE FUNCTION outbox.acting_role() RETURNS name
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END;

-- Who acts, for the audit: what the session reports of itself (SET outbox.actor), the role, and the login behind SET ROLE.
-- Most sessions have neither, and PostgreSQL starts each part of an expression for each statement, also what is not
-- reached. So the long answer is in a function of its own, which is called only where it is needed.
CREATE FUNCTION outbox.actor_in_full() RETURNS text
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reported text := left(nullif(current_setting('outbox.actor', true), ''), 200);
    acting   text := current_setting('role');
BEGIN
    acting := CASE WHEN acting IN ('none', session_user) THEN session_user ELSE acting || ', login ' || session_user END;
    RETURN CASE WHEN reported IS NULL THEN acting ELSE reported || ' (' || acting || ')' END;
END $$;
CREATE FUNCTION outbox.actor() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN concat(current_setting('role'), '/', current_setting('outbox.actor', true)) = 'none/'
        THEN session_user::text ELSE outbox.actor_in_full() END;

-- The lane of a message. All messages of one order key (or of one explicit queue) of a topic share a lane, so that one
-- owner publishes them in order; messages with neither are spread by id. Any language can compute it.
CREATE FUNCTION outbox.lane_of(topic text, queue integer, order_key bytea, id bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN queue IS NOT NULL THEN get_byte(sha256(convert_to(topic || '/' || queue::text, 'UTF8')), 0) & 7
        WHEN order_key IS NOT NULL THEN get_byte(sha256(convert_to(topic || ':', 'UTF8') || order_key), 0) & 7
        ELSE id & 7
    END::smallint;


-- Messages --------------------------------------------------------------------------------------------------

-- A domain's CHECK is kept ready by each session; a table's is parsed from the catalogue for every INSERT.
CREATE DOMAIN outbox.lane_number AS smallint CONSTRAINT message_lane_is_one CHECK (VALUE BETWEEN 0 AND 7);
COMMENT ON DOMAIN outbox.lane_number IS 'A lane: 0 to 7. Leave it out, or give what outbox.lane_of returns.';

-- Column order matters: defaults are evaluated in it. The transaction id must exist before the position is
-- taken ("a position taken implies a running xid"), and id repeats the position of the insert.
-- What a row may hold is guarded by the triggers below, not by CHECK constraints or a generated column: those
-- are parsed from the catalogue and planned again for every INSERT statement and cost ten times as much.
CREATE TABLE outbox.message (
    xid            xid8        NOT NULL DEFAULT pg_current_xact_id(),
    position       bigint      NOT NULL DEFAULT nextval('outbox.position'),
    id             bigint      NOT NULL DEFAULT currval('outbox.position'),
    message_id     uuid        NOT NULL DEFAULT outbox.new_message_id(currval('outbox.position')),
    born_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    decided_at     timestamptz,
    deliver_at     timestamptz,
    deliver_before timestamptz,
    check_after    interval,
    queue          integer,
    lane           outbox.lane_number NOT NULL,  -- see outbox.lane_of; the trigger sets it when it is left out
    state          text        NOT NULL DEFAULT 'COMMITTED',
    topic          text        NOT NULL,
    key            bytea,
    body           bytea,
    headers        jsonb,
    order_key      bytea,
    selector       text,
    tags           text[]      NOT NULL DEFAULT '{}',
    index_keys     text[]      NOT NULL DEFAULT '{}',
    producer_group text,
    transaction_id text,
    checker        text,
    biz_type       text,
    biz_id         text,
    traceparent    text,
    remark         text,
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);

COMMENT ON TABLE outbox.message IS 'One row per message; a plain INSERT inside the business transaction sends it.';
COMMENT ON COLUMN outbox.message.xid IS 'the transaction that gave the row its state; the relay finds rows by it';
COMMENT ON COLUMN outbox.message.position IS 'place in the order, taken when the message became COMMITTED';
COMMENT ON COLUMN outbox.message.id IS 'place of the insert; decides the partition and never changes';
COMMENT ON COLUMN outbox.message.order_key IS 'arg of the message queue selector; the key when null';
COMMENT ON COLUMN outbox.message.selector IS 'name of the message queue selector: murmur2, modulo, random, round_robin, java_hash, crc32';
COMMENT ON COLUMN outbox.message.queue IS 'explicit partition; wins over the selector';
COMMENT ON COLUMN outbox.message.deliver_at IS 'not published before this time';
COMMENT ON COLUMN outbox.message.deliver_before IS 'not published at or after this time: the relay lists it as DEAD then';
COMMENT ON COLUMN outbox.message.check_after IS 'when a half message is first asked about; its group''s when null';

-- The finder: what became COMMITTED after the previous snapshot. A poll passes over the hash of a topic that is read apart.
CREATE INDEX message_finder ON outbox.message (xid, lane, hashtext(topic)) WHERE state = 'COMMITTED';
-- Everything that may still become COMMITTED keeps its partition live.
CREATE INDEX message_unsettled ON outbox.message (producer_group, id)
    WHERE state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD');
-- Message ids made elsewhere; those made here carry the row's id.
CREATE INDEX message_foreign_id ON outbox.message (message_id)
    WHERE get_byte(uuid_send(message_id), 6) >> 4 <> 8;
-- Operators' look-ups. Block ranges instead of trees where every message would pay for a tree.
CREATE INDEX message_index_keys ON outbox.message USING gin (index_keys) WHERE index_keys <> '{}';
-- Trees for the business and transaction ids, over those rows only that have one: a message without them pays nothing.
CREATE INDEX message_biz_id ON outbox.message (biz_id) WHERE biz_id IS NOT NULL;
CREATE INDEX message_transaction_id ON outbox.message (transaction_id) WHERE transaction_id IS NOT NULL;
-- A range is summed up by a vacuum once it is full: doing that while sessions fill it costs each insert a quarter more.
CREATE INDEX message_born_at ON outbox.message USING brin (born_at) WITH (pages_per_range = 32);
CREATE INDEX message_key ON outbox.message USING brin (key bytea_bloom_ops, topic text_bloom_ops)
    WITH (pages_per_range = 32);

-- Publications ----------------------------------------------------------------------------------------------

-- Append-only, one row per published batch: which positions went to which partitions and offsets, and how far
-- that brought the relay. Marking each message instead would rewrite every row and leave a dead tuple for each.
-- A row never spans the bounds of two partitions of outbox.message, so both are dropped together.
CREATE TABLE outbox.publication (
    xid           xid8        NOT NULL DEFAULT pg_current_xact_id(),
    epoch         bigint      NOT NULL,
    batch         bigint      NOT NULL,
    lo            bigint      NOT NULL,
    hi            bigint      NOT NULL,
    -- Progress of these lanes: all that is visible in "snapshot" is published; while "after" is set, what was not visible
    -- in "base" only up to that position (a backlog). Beyond it some is, too, where it "is_partial". See docs/adr/0007.
    lanes         smallint[]  NOT NULL,
    base          pg_snapshot,
    snapshot      pg_snapshot NOT NULL,
    after         bigint,
    is_partial    boolean     NOT NULL DEFAULT false,
    published_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    positions     bigint[]    NOT NULL,
    partitions    integer[]   NOT NULL,
    offsets       bigint[]    NOT NULL,
    PRIMARY KEY (epoch, batch, lo),
    CONSTRAINT publication_is_complete CHECK (cardinality(positions) = cardinality(partitions)
        AND cardinality(positions) = cardinality(offsets) AND cardinality(positions) > 0),
    CONSTRAINT publication_after_has_a_base CHECK ((base IS NULL) = (after IS NULL))
) PARTITION BY RANGE (lo);
-- Out of line and uncompressed: compressing arrays of close numbers costs more than it saves.
ALTER TABLE outbox.publication ALTER positions SET STORAGE EXTERNAL, ALTER partitions SET STORAGE EXTERNAL,
    ALTER offsets SET STORAGE EXTERNAL;
CREATE INDEX publication_span ON outbox.publication USING gist (int8range(lo, hi, '[]'));
CREATE INDEX publication_published_at ON outbox.publication USING brin (published_at)
    WITH (pages_per_range = 16, autosummarize = on);
COMMENT ON TABLE outbox.publication IS 'One row per published batch; outbox.message_status joins it to messages.';

-- Events ----------------------------------------------------------------------------------------------------

-- Append-only: each transition and check of a half message, with who did it and why.
CREATE TABLE outbox.event (
    xid        xid8        NOT NULL DEFAULT pg_current_xact_id(),
    id         bigint      NOT NULL,
    happened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    message_id uuid        NOT NULL,
    kind       text        NOT NULL,  -- transition or check; a CHECK would be parsed anew for every half message
    from_state text,
    to_state   text,
    answer     text,
    actor      text        NOT NULL,
    reason     text
) PARTITION BY RANGE (id);
CREATE INDEX event_message ON outbox.event (id, happened_at);
COMMENT ON COLUMN outbox.event.id IS 'the message''s id, so that its events share its partition';


-- Beside the messages ---------------------------------------------------------------------------------------

-- Committed, but not publishable now: delayed, expired (see docs/adr/0011), failed (it cannot be published), or held behind a failed message of the same
-- order key (see 0001_parked_keys.sql). The finder and the sweep leave these rows out.
-- A delayed message has its row from the moment it is COMMITTED, written by the triggers below. The transaction that
-- deletes that row decides: the relay's, which releases the message when it is due, or a cancellation.
CREATE TABLE outbox.waiting (
    id         bigint      PRIMARY KEY,
    message_id uuid        NOT NULL,
    reason     text        NOT NULL CHECK (reason IN ('delayed', 'held', 'parked', 'failed', 'expired')),
    due_at     timestamptz,
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT waiting_delay_has_an_end CHECK (reason <> 'delayed' OR due_at IS NOT NULL)
);
CREATE INDEX waiting_due ON outbox.waiting (due_at) WHERE due_at IS NOT NULL;

-- Topics: what may be sent to them, and the partition count that key hashing is pinned to.
CREATE TABLE outbox.topic (
    name              text        PRIMARY KEY,
    message_type      text        NOT NULL DEFAULT 'MIXED'
                                  CHECK (message_type IN ('NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'MIXED')),
    partitions        integer     NOT NULL CHECK (partitions > 0),
    selector          text,
    max_message_bytes integer     NOT NULL DEFAULT 1048588 CHECK (max_message_bytes > 0),
    registered_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    partitions_in_kafka integer   CHECK (partitions_in_kafka > 0), -- as a relay read it last; no key moves by it
    CONSTRAINT topic_name_is_legal CHECK (name ~ '^[a-zA-Z0-9._-]{1,249}$' AND name NOT IN ('.', '..'))
);

-- Producer groups: how their half messages are asked about, and what happens to those never decided. A group that
-- is not here has the defaults. A callback says how the checker asks; without one the application asks itself.
-- It holds no secrets, and no message can change it.
CREATE TABLE outbox.producer_group (
    -- Names, limits and defaults as in outbox/operations/groups.py.
    name               text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 255)
                                   CHECK (name !~ '[[:space:][:cntrl:]]'),
    message_type       text        NOT NULL DEFAULT 'MIXED'
                                   CHECK (message_type IN ('NORMAL', 'TRANSACTION', 'MIXED')),
    check_after        interval    NOT NULL DEFAULT '6 seconds' CHECK (check_after BETWEEN '0' AND '3650 days'),
    check_interval     interval    NOT NULL DEFAULT '30 seconds'
                                   CHECK (check_interval BETWEEN '1 millisecond' AND '3650 days'),
    max_check_interval interval    NOT NULL DEFAULT '10 minutes' CHECK (max_check_interval <= '3650 days'),
    check_timeout      interval    NOT NULL DEFAULT '3 seconds'
                                   CHECK (check_timeout BETWEEN '1 millisecond' AND '3650 days'),
    max_checks         integer     NOT NULL DEFAULT 15 CHECK (max_checks BETWEEN 1 AND 1000000),
    max_age            interval    NOT NULL DEFAULT '72 hours' CHECK (max_age <= '3650 days'),
    policy             text        NOT NULL DEFAULT 'ROLLBACK' CHECK (policy IN ('ROLLBACK', 'EXHAUSTED')),
    workers            integer     NOT NULL DEFAULT 4 CHECK (workers BETWEEN 1 AND 64),
    callback           jsonb,
    role               name,
    registered_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT producer_group_intervals_grow CHECK (max_check_interval >= check_interval),
    CONSTRAINT producer_group_is_asked_in_time CHECK (max_age > check_after),
    CONSTRAINT producer_group_callback_is_known
        CHECK (callback IS NULL OR coalesce(callback ->> 'kind', '') IN ('http', 'sql'))
);

COMMENT ON COLUMN outbox.producer_group.role IS
    'only members of this role decide or cancel the group''s messages; everybody with the privilege when null';

-- Half messages that linger: when each is asked about next, and how often it was. Written by checkers only, when a
-- half message first falls due; most are decided before that and cost nothing here. Apart from outbox.message, so
-- that no row of it grows by being checked.
CREATE TABLE outbox.pending_check (
    id             bigint      PRIMARY KEY,
    message_id     uuid        NOT NULL,
    producer_group text        NOT NULL,
    due_at         timestamptz NOT NULL,
    checks         integer     NOT NULL DEFAULT 0,
    asked_by       text,
    answer         text,
    remark         text,
    -- When the last check was answered with UNKNOWN; null when it failed: a policy follows nothing else. And past the
    -- group's age, since when each attempt was in vain.
    answered_at      timestamptz,
    unanswered_since timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX pending_check_due ON outbox.pending_check (producer_group, due_at);
COMMENT ON TABLE outbox.pending_check IS 'One row per half message that a checker has found; due_at is also the claim''s lease.';

-- What an operator should know about a producer group, raised and cleared by checkers.
CREATE TABLE outbox.alarm (
    producer_group text        NOT NULL,
    kind           text        NOT NULL CHECK (kind IN ('no_checker', 'failing', 'flood', 'exhausted', 'silent', 'rolled_back')),
    detail         text        NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (producer_group, kind)
);

-- Alarms for the webhook: a row per cause, until the receiver has heard of its end. "claim" sends it until "send_after".
CREATE TABLE outbox.notice (
    kind          text        NOT NULL,
    cause         text        NOT NULL,
    id            uuid        NOT NULL DEFAULT gen_random_uuid(),
    detail        text        NOT NULL,
    raised_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    cleared_at    timestamptz,
    raise_sent_at timestamptz,
    claim         text,
    tries         integer     NOT NULL DEFAULT 0,
    send_after    timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (kind, cause)
);

-- Lanes: one owner at a time, by lease. Progress is in the last publication of the owner's epoch, from batch "joined"
-- on, that speaks for the lane; before there is one, and while the lane is stopped, it is what is written here (NULL:
-- unknown; everything that has no publication is to be published). Never updated per batch: under a held snapshot every
-- version of the row would have to be walked. The owner sets "retrying_at" and commits that before it reads a stopped
-- lane again, and clears it with the record of what came of it. While it is set, nobody can tell whether the message
-- that the lane stopped at is being published. "retry_requested_at" asks the owner to try a stopped lane again now. A
-- message up to the position "doubted_until" that has no publication may be in Kafka: its acknowledgement was lost,
-- with a producer or with a relay. "stopped_in_doubt" states that of the message that the lane stopped at. Both are
-- written with a stop and when the lanes are given back; whoever takes lanes that were not given back raises
-- "doubted_until" to the newest position. "timeline" is that of the server where it was taken. See docs/adr/0012.
CREATE TABLE outbox.lane (
    lane              smallint PRIMARY KEY CHECK (lane BETWEEN 0 AND 7),
    mode              text     NOT NULL DEFAULT 'at-least-once' CHECK (mode IN ('at-least-once', 'exactly-once')),
    owner             text,
    epoch             bigint   NOT NULL DEFAULT 0,
    joined            bigint   NOT NULL DEFAULT 0,
    base              pg_snapshot,
    snapshot          pg_snapshot,
    after             bigint,
    is_partial        boolean  NOT NULL DEFAULT false,
    system_identifier bigint,
    timeline          integer,
    doubted_until     bigint   NOT NULL DEFAULT 0,
    stopped_error     text,
    stopped_message   uuid,
    stopped_in_doubt  boolean  NOT NULL DEFAULT false,
    stopped_at        timestamptz,
    retrying_at       timestamptz,
    retry_requested_at timestamptz,
    CONSTRAINT lane_after_has_a_base CHECK ((base IS NULL) = (after IS NULL)),
    CONSTRAINT lane_in_doubt_is_stopped CHECK (stopped_error IS NOT NULL OR NOT stopped_in_doubt)
) WITH (fillfactor = 10);
INSERT INTO outbox.lane (lane) SELECT generate_series(0, 7);

-- One row per relay that runs, with lanes or without: until when its epoch owns them. Renewed every few seconds, and
-- therefore apart from outbox.lane, which every barrier reads: under a held snapshot it would have to walk all versions
-- that renewing leaves. A relay that drains gives its lanes to the others. Relays whose versions are more than one
-- apart do not share lanes.
CREATE TABLE outbox.lease (
    epoch        bigint      PRIMARY KEY,
    owner        text        NOT NULL,
    backend_pid  integer     NOT NULL,
    version      smallint    NOT NULL DEFAULT 1,
    is_draining  boolean     NOT NULL DEFAULT false,
    joined_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    leased_until timestamptz NOT NULL
) WITH (fillfactor = 10);

-- The same send twice is one message.
CREATE TABLE outbox.idempotency (
    producer_group text        NOT NULL,
    key            text        NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    digest         bytea       NOT NULL,
    id             bigint      NOT NULL,
    message_id     uuid        NOT NULL,
    born_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (producer_group, key)
);
CREATE INDEX idempotency_born_at ON outbox.idempotency USING brin (born_at);

-- What a warehouse was proven to hold: every message whose xid lies in [window_lo, window_hi), compared with Kafka and
-- with the target. Only partitions that certificates cover may be dropped. A target is a place; "warehouse" is the
-- identity of what was found there, and only certificates of the newest one's identity count. "held" are the ids of the
-- partitions that were read. problems > 0 takes back what earlier certificates proved of the window. A cluster's timeline
-- is another one once a standby has been promoted; "database" is the object id of this one. Both, with the system
-- identifier, are those of the server that wrote the row: certificates of others count for nothing.
CREATE TABLE outbox.certificate (
    xid               xid8        NOT NULL DEFAULT pg_current_xact_id(),
    target            text        NOT NULL,
    system_identifier bigint      NOT NULL,
    timeline          integer     NOT NULL,
    database          bigint      NOT NULL,
    warehouse         text        NOT NULL,
    held              int8multirange NOT NULL,
    window_lo         xid8        NOT NULL,
    window_hi         xid8        NOT NULL,
    messages          bigint      NOT NULL,
    problems          bigint      NOT NULL,
    checksum          text        NOT NULL,
    verified_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (target, system_identifier, window_lo, window_hi, verified_at),
    CONSTRAINT certificate_window_is_one CHECK (window_lo < window_hi)
);
