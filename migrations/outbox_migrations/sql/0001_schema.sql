-- The outbox: one table of messages, and beside it small tables that each have one job.
-- Everything lives in the schema "outbox"; a host application's tables are never touched.

CREATE SCHEMA IF NOT EXISTS outbox;
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


-- Who acts, for the audit: what the session says of itself (SET outbox.actor), and whom the server knows it as.
CREATE FUNCTION outbox.actor() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN nullif(current_setting('outbox.actor', true), '') IS NULL THEN session_user::text
        ELSE left(current_setting('outbox.actor', true), 200) || ' (' || session_user || ')' END;

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
    check_after    interval,
    queue          integer,
    lane           smallint    NOT NULL,  -- see outbox.lane_of; the trigger sets it when it is left out
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
COMMENT ON COLUMN outbox.message.selector IS 'name of the message queue selector: murmur2, modulo, random, round_robin';
COMMENT ON COLUMN outbox.message.queue IS 'explicit partition; wins over the selector';
COMMENT ON COLUMN outbox.message.deliver_at IS 'not published before this time';
COMMENT ON COLUMN outbox.message.check_after IS 'when a half message is first asked about; its group''s when null';

-- The finder: what became COMMITTED after the previous snapshot.
CREATE INDEX message_finder ON outbox.message (xid, lane) WHERE state = 'COMMITTED';
-- Everything that may still become COMMITTED keeps its partition live.
CREATE INDEX message_unsettled ON outbox.message (producer_group, id)
    WHERE state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD');
-- Message ids made elsewhere; those made here carry the row's id.
CREATE INDEX message_foreign_id ON outbox.message (message_id)
    WHERE get_byte(uuid_send(message_id), 6) NOT BETWEEN 128 AND 143;
-- Operators' look-ups. Block ranges instead of trees: an insert pays next to nothing for them.
CREATE INDEX message_index_keys ON outbox.message USING gin (index_keys) WHERE index_keys <> '{}';
-- A range is summed up by a vacuum once it is full: keeping the sums of pages that many sessions fill at the same time
-- costs each insert a quarter more.
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
    -- Progress of these lanes: all that is visible in "snapshot" is published; while "after" is set, what was
    -- not visible in "base" only up to that position (a backlog, taken page by page).
    lanes         smallint[]  NOT NULL,
    base          pg_snapshot,
    snapshot      pg_snapshot NOT NULL,
    after         bigint,
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
    kind       text        NOT NULL CHECK (kind IN ('transition', 'check')),
    from_state text,
    to_state   text,
    answer     text,
    actor      text        NOT NULL,
    reason     text
) PARTITION BY RANGE (id);
CREATE INDEX event_message ON outbox.event (id, happened_at);
COMMENT ON COLUMN outbox.event.id IS 'the message''s id, so that its events share its partition';


-- Beside the messages ---------------------------------------------------------------------------------------

-- Committed, but not publishable now: delayed, held behind a failed message of the same order key, or parked
-- with its topic. Taken and released by compare-and-set; the finder and the sweep leave these rows out.
-- A delayed message has its row from the moment it is COMMITTED, written by the triggers below. Whoever deletes
-- that row decides: the relay, which releases the message when it is due, or a cancellation.
CREATE TABLE outbox.waiting (
    id         bigint      PRIMARY KEY,
    message_id uuid        NOT NULL,
    reason     text        NOT NULL CHECK (reason IN ('delayed', 'held', 'parked')),
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
    CONSTRAINT topic_name_is_legal CHECK (name ~ '^[a-zA-Z0-9._-]{1,249}$' AND name NOT IN ('.', '..'))
);

-- Producer groups: how their half messages are asked about, and what happens to those never decided. A group that
-- is not here has the defaults. A callback says how the checker asks; without one the application asks itself.
-- It holds no secrets, and no message can change it.
CREATE TABLE outbox.producer_group (
    name               text        PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 255),
    message_type       text        NOT NULL DEFAULT 'MIXED'
                                   CHECK (message_type IN ('NORMAL', 'TRANSACTION', 'MIXED')),
    check_after        interval    NOT NULL DEFAULT '6 seconds' CHECK (check_after >= '0'),
    check_interval     interval    NOT NULL DEFAULT '30 seconds' CHECK (check_interval > '0'),
    max_check_interval interval    NOT NULL DEFAULT '10 minutes',
    check_timeout      interval    NOT NULL DEFAULT '3 seconds' CHECK (check_timeout > '0'),
    max_checks         integer     NOT NULL DEFAULT 15 CHECK (max_checks > 0),
    max_age            interval    NOT NULL DEFAULT '72 hours' CHECK (max_age > '0'),
    policy             text        NOT NULL DEFAULT 'ROLLBACK' CHECK (policy IN ('ROLLBACK', 'EXHAUSTED')),
    workers            integer     NOT NULL DEFAULT 4 CHECK (workers BETWEEN 1 AND 64),
    callback           jsonb,
    registered_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT producer_group_intervals_grow CHECK (max_check_interval >= check_interval),
    CONSTRAINT producer_group_callback_is_known
        CHECK (callback IS NULL OR coalesce(callback ->> 'kind', '') IN ('http', 'sql'))
);

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
    remark         text
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX pending_check_due ON outbox.pending_check (producer_group, due_at);
COMMENT ON TABLE outbox.pending_check IS 'One row per half message that a checker has met; due_at is also the claim''s lease.';

-- What an operator should know about a producer group, raised and cleared by checkers.
CREATE TABLE outbox.alarm (
    producer_group text        NOT NULL,
    kind           text        NOT NULL CHECK (kind IN ('no_checker', 'failing', 'flood', 'exhausted')),
    detail         text        NOT NULL,
    since          timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (producer_group, kind)
);

-- Lanes: one owner at a time, by lease. Progress is in the last publication of the owner's epoch, from batch
-- "joined" on, that speaks for the lane; before there is one, and while the lane is stopped, it is what is
-- written here (NULL: unknown; everything that has no publication is to be published). Never updated per batch:
-- under a held snapshot every version of the row would have to be walked.
CREATE TABLE outbox.lane (
    lane              smallint PRIMARY KEY CHECK (lane BETWEEN 0 AND 7),
    mode              text     NOT NULL DEFAULT 'at-least-once' CHECK (mode IN ('at-least-once', 'exactly-once')),
    owner             text,
    epoch             bigint   NOT NULL DEFAULT 0,
    joined            bigint   NOT NULL DEFAULT 0,
    base              pg_snapshot,
    snapshot          pg_snapshot,
    after             bigint,
    system_identifier bigint,
    stopped_error     text,
    stopped_message   uuid,
    stopped_at        timestamptz,
    CONSTRAINT lane_after_has_a_base CHECK ((base IS NULL) = (after IS NULL))
) WITH (fillfactor = 10);
INSERT INTO outbox.lane (lane) SELECT generate_series(0, 7);

-- Until when an epoch owns its lanes. Renewed every few seconds, and therefore apart from outbox.lane, which every
-- barrier reads: under a held snapshot it would have to walk all versions that renewing leaves.
CREATE TABLE outbox.lease (
    epoch        bigint      PRIMARY KEY,
    owner        text        NOT NULL,
    backend_pid  integer     NOT NULL,
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
-- with the target. Only partitions that certificates cover may be dropped.
CREATE TABLE outbox.certificate (
    xid               xid8        NOT NULL DEFAULT pg_current_xact_id(),
    target            text        NOT NULL,
    system_identifier bigint      NOT NULL,
    window_lo         xid8        NOT NULL,
    window_hi         xid8        NOT NULL,
    messages          bigint      NOT NULL,
    problems          bigint      NOT NULL,
    checksum          text        NOT NULL,
    verified_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (target, system_identifier, window_lo, window_hi, verified_at),
    CONSTRAINT certificate_window_is_one CHECK (window_lo < window_hi)
);


-- The table guards itself ------------------------------------------------------------------------------------

-- What one row may hold, and the lane that follows from it. One cheap condition finds whatever might be wrong (and half messages); only those rows are looked at closely.
CREATE FUNCTION outbox.admit_message() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF length(NEW.topic) NOT BETWEEN 1 AND 249 OR NEW.topic ~ '[^a-zA-Z0-9._-]' OR NEW.topic IN ('.', '..')
       OR NEW.queue < 0
       OR (NEW.tags <> '{}' AND NEW.tags::text ~ '[|"]|NULL')
       OR (NEW.index_keys <> '{}' AND NEW.index_keys::text ~ '[\s"]|NULL')
       OR (NEW.headers IS NOT NULL
           AND (NEW.headers::text ~* '"(outbox-|traceparent|")|\\u'
                OR jsonb_path_exists(NEW.headers, '$.* ? (@.type() != "string" && @.type() != "null")')
                OR jsonb_typeof(NEW.headers) <> 'object'))
       OR (substr(uuid_send(NEW.message_id), 1, 6) <> substr(int8send(NEW.id), 3, 6)
           AND get_byte(uuid_send(NEW.message_id), 6) BETWEEN 128 AND 143) THEN
        PERFORM outbox.look_closely(NEW.id, NEW.message_id, NEW.topic, NEW.queue, NEW.tags, NEW.index_keys,
                                    NEW.headers);
    END IF;
    NEW.lane := outbox.lane_of(NEW.topic, NEW.queue, coalesce(NEW.order_key, NEW.key), NEW.id);
    RETURN NEW;
END $$;
-- The library has checked what it sends and says the lane with it, so the trigger, a third of what the insert would
-- cost, need not run. What is written beside a message and which states it may be born in does not depend on that.
CREATE TRIGGER message_admission BEFORE INSERT ON outbox.message FOR EACH ROW
    WHEN (NEW.lane IS NULL) EXECUTE FUNCTION outbox.admit_message();

-- Refuses what is wrong, by name; lets pass what only looked wrong.
CREATE FUNCTION outbox.look_closely(id bigint, message_id uuid, topic text, queue integer, tags text[],
                                    index_keys text[], headers jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bad text;
BEGIN
    IF length(topic) NOT BETWEEN 1 AND 249 OR topic ~ '[^a-zA-Z0-9._-]' OR topic IN ('.', '..') THEN
        RAISE EXCEPTION 'topic % is not a legal Kafka topic name', quote_literal(left(topic, 260))
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_topic_is_legal',
                  HINT = 'Allowed: 1 to 249 of a-z, A-Z, 0-9, ".", "_" and "-"; not "." or "..".';
    END IF;
    IF queue < 0 THEN
        RAISE EXCEPTION 'queue % is not a partition', queue
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_queue_is_a_partition',
                  HINT = 'Partitions are numbered from 0.';
    END IF;
    IF array_position(tags, NULL) IS NOT NULL OR '' = ANY (tags) OR array_to_string(tags, ' ') ~ '\|' THEN
        RAISE EXCEPTION 'tags must not be empty, null or contain "|"'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_tags_are_separable',
                  HINT = 'Tags are joined by "||" in the record header outbox-tags.';
    END IF;
    IF array_position(index_keys, NULL) IS NOT NULL OR '' = ANY (index_keys)
       OR array_to_string(index_keys, '') ~ '\s' THEN
        RAISE EXCEPTION 'index_keys must not be empty, null or contain white space'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_index_keys_are_separable',
                  HINT = 'Index keys are joined by one space in the record header outbox-keys.';
    END IF;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object of strings, not %', jsonb_typeof(headers)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_headers_are_text';
    END IF;
    SELECT h.key INTO bad FROM jsonb_each(headers) h WHERE jsonb_typeof(h.value) NOT IN ('string', 'null') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'header % is not a string', quote_literal(bad)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_headers_are_text';
    END IF;
    SELECT h.key INTO bad FROM jsonb_object_keys(headers) h(key)
        WHERE h.key = '' OR starts_with(lower(h.key), 'outbox-') OR lower(h.key) = 'traceparent' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'header name % is empty or reserved', quote_literal(bad)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_header_is_not_reserved',
                  HINT = 'Reserved: names beginning with "outbox-"; traceparent has a column of its own.';
    END IF;
    -- An id of version 8 carries the row's own id (see new_message_id); any other version may come from outside.
    IF outbox.id_of(message_id) <> id THEN
        RAISE EXCEPTION 'message_id % is of version 8, which only the outbox makes', message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_id_is_ours_or_foreign',
                  HINT = 'Leave message_id out, or give a UUID of version 4 or 7.';
    END IF;
END $$;

-- Which births there are, and what is written beside them: the audit of a half message, the wait of a delayed one.
-- With the owner's rights, since producers may write neither table.
CREATE FUNCTION outbox.note_birth() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.state = 'UNKNOWN' THEN
        IF NEW.producer_group IS NULL THEN
            RAISE EXCEPTION 'a half message needs a producer_group'
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_half_has_a_group',
                      HINT = 'Somebody must be asked when the producer falls silent.';
        END IF;
        IF EXISTS (SELECT FROM outbox.producer_group g
                   WHERE g.name = NEW.producer_group AND g.message_type = 'NORMAL') THEN
            RAISE EXCEPTION 'producer group % is registered for normal messages, not for half messages',
                    quote_literal(NEW.producer_group)
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_type_is_the_groups',
                      HINT = 'A group that sends both is of type MIXED.';
        END IF;
        INSERT INTO outbox.event (id, message_id, kind, to_state, actor)
        VALUES (NEW.id, NEW.message_id, 'transition', 'UNKNOWN', outbox.actor());
    ELSIF NEW.state <> 'COMMITTED' THEN
        RAISE EXCEPTION 'a message cannot be born %', NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_state_is_a_birth',
                  HINT = 'Allowed: COMMITTED (the default), or UNKNOWN for a half message.';
    ELSIF NEW.deliver_at > clock_timestamp() THEN
        INSERT INTO outbox.waiting (id, message_id, reason, due_at)
        VALUES (NEW.id, NEW.message_id, 'delayed', NEW.deliver_at);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER message_birth BEFORE INSERT ON outbox.message FOR EACH ROW
    WHEN (NEW.state <> 'COMMITTED' OR NEW.deliver_at IS NOT NULL) EXECUTE FUNCTION outbox.note_birth();

-- One statement decides, in any language:
--   UPDATE outbox.message SET state = 'COMMITTED', remark = … WHERE id = … AND state = 'UNKNOWN'
-- The row takes its xid and then its position at that moment, and the audit row is written with it. Two that race
-- meet at the row's lock; the second then finds it decided and updates nothing.
-- A cancellation races with the relay, which releases a delayed message when it is due: both lock the message, then
-- delete its row in outbox.waiting. Who comes second finds none: the relay goes on, the cancellation is refused.
CREATE FUNCTION outbox.make_transition() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.transition t
                   WHERE t.from_state = OLD.state AND t.to_state = NEW.state) THEN
        RAISE EXCEPTION 'message % is % and cannot become %', OLD.message_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_transition',
                  HINT = 'The allowed transitions are in outbox.transition.';
    END IF;
    NEW.xid := pg_current_xact_id();
    NEW.decided_at := clock_timestamp();
    IF NEW.state = 'COMMITTED' THEN
        NEW.position := nextval('outbox.position');
        IF NEW.deliver_at > NEW.decided_at THEN
            INSERT INTO outbox.waiting (id, message_id, reason, due_at)
            VALUES (OLD.id, OLD.message_id, 'delayed', NEW.deliver_at);
        END IF;
    ELSIF NEW.state = 'CANCELLED' THEN
        DELETE FROM outbox.waiting w WHERE w.id = OLD.id AND w.reason = 'delayed';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'message % is not waiting for its time, so it can no longer be cancelled', OLD.message_id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_is_waiting',
                      HINT = 'Only a message with deliver_at can be cancelled, until the relay releases it.';
        END IF;
    END IF;
    INSERT INTO outbox.event (id, message_id, kind, from_state, to_state, actor, reason)
    VALUES (OLD.id, OLD.message_id, 'transition', OLD.state, NEW.state, outbox.actor(), NEW.remark);
    RETURN NEW;
END $$;
CREATE TRIGGER message_transition BEFORE UPDATE OF state ON outbox.message
    FOR EACH ROW WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION outbox.make_transition();
