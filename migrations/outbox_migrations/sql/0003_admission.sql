-- What a message costs its transaction. Most rows state their lane, and the library has checked them: the trigger on INSERT has
-- nothing to do. Yet PostgreSQL read the condition of its WHEN from text, and planned it, for every INSERT statement, which was a
-- sixth of the instructions of a send; and strong random bits for the message id were a fifth of a row of a large send_many. See
-- docs/adr/0004.
--
-- To replace a trigger, writers of the table are locked out: senders, who decides, and relays where they release delayed
-- messages or publish lost ones again; publishing only reads the table. The second lock waits for transactions that have
-- written to the table and are still open, and writers that come later queue behind it: for 1 s at most for the table and
-- for each partition, which PostgreSQL locks one by one. Then the upgrade fails and has changed nothing. Run it again.
-- These are the first statements, so that this script locks nothing else while it waits. In an upgrade from 0001 the
-- transaction has the table of 0002 already, so consumers wait as long to park a message.
--
-- First vacuums and those who add partitions, beside which senders go on; more than deadlock_timeout, which ends an autovacuum.
SET LOCAL lock_timeout = '5s';
LOCK TABLE outbox.message IN SHARE UPDATE EXCLUSIVE MODE;
SET LOCAL lock_timeout = '1s';
LOCK TABLE outbox.message IN SHARE ROW EXCLUSIVE MODE;

-- What one row may hold, which births there are, and what is written beside them: the audit of a half message, the wait of
-- a delayed one. One condition finds whatever might be wrong; only such rows are looked at closely. Returns the lane.
-- PL/pgSQL reads strings as the writer's standard_conforming_strings has it: those with a backslash are e'' strings.
CREATE FUNCTION outbox.admit_closely(m outbox.message) RETURNS outbox.lane_number
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    lane       smallint := m.lane;
    shape      text;
    topic_type text;
    selector   text;
    most_bytes integer;
    group_type text;
    group_role name;
BEGIN
    IF m.lane IS NOT NULL
       AND has_function_privilege(outbox.acting_role(), 'outbox.trusts_stated_lanes()'::regprocedure, 'EXECUTE') THEN
        SELECT g.message_type, g.role INTO group_type, group_role
        FROM outbox.producer_group g WHERE g.name = m.producer_group;
    ELSE
        -- Tags, index keys, headers, trace and topic, line by line: PostgreSQL starts each expression of a function once
        -- per transaction, and one match costs less than ten comparisons. An array quotes a line end and JSON escapes it,
        -- so the first three lines end where their columns do. Trace and topic are texts of the writer's choice. They come
        -- last, and the pattern takes no line end in either, so that neither can stand for another column.
        shape := concat(m.tags, e'\n', m.index_keys, e'\n', m.headers, e'\n', m.traceparent, e'\n', m.topic);
        -- Unusual, not wrong: texts that an array quotes, tags that begin like NULL, headers with a backslash or with a
        -- name that begins like a reserved one or like that of an event's attribute, ids from outside.
        IF shape !~ (e'^\\{(([^|"{},N]|N[^|"{},U])[^|"{},]*,?)*\\}\\n'
                     '\\{(([^\\s"{},N]|N[^\\s"{},U])[^\\s"{},]*,?)*\\}\\n'
                     '(\\{("([^"\\\\coOtT]|c[^"\\\\e]|[oO][^"\\\\uU]|[tT][^"\\\\rR])[^"\\\\]*": ("[^"\\\\]*"|null)(, )?)*\\})?\\n'
                     '([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\\n'
                     '[a-zA-Z0-9._-]+$')
           OR octet_length(shape) > 8192 OR octet_length(m.topic) > 249 OR m.topic IN ('.', '..')
           OR greatest(octet_length(m.body), octet_length(m.key), octet_length(m.order_key)) > 16384
           OR num_nonnulls(m.queue, m.selector, m.check_after) > 0
           OR octet_length(concat(m.producer_group, m.transaction_id, m.checker, m.biz_type, m.biz_id)) > 255
           OR least(m.producer_group, m.transaction_id, m.checker, m.biz_type, m.biz_id, m.traceparent) = ''
           OR substr(uuid_send(m.message_id), 1, 6) <> substr(int8send(m.id), 3) THEN
            PERFORM outbox.check_record(m);
        END IF;
        SELECT t.message_type, t.selector, t.max_message_bytes, g.message_type, g.role
        INTO topic_type, selector, most_bytes, group_type, group_role
        FROM (SELECT) AS one
        LEFT JOIN outbox.topic t ON t.name = m.topic
        LEFT JOIN outbox.producer_group g ON g.name = m.producer_group;
        -- 5000: what framing and the names in front of the record's own headers take at most, and the two short texts.
        IF topic_type <> 'MIXED' OR selector IS NOT NULL OR (topic_type IS NOT NULL AND m.queue IS NOT NULL)
           OR 5000 + coalesce(octet_length(m.body)::bigint, 0) + coalesce(octet_length(m.key), 0)
              + 3 * octet_length(shape) > most_bytes THEN
            PERFORM outbox.require_fit_for_topic(m, t) FROM outbox.topic t WHERE t.name = m.topic;
        END IF;
        IF m.state = 'UNKNOWN' AND m.producer_group ~ '[[:space:][:cntrl:]]' THEN  -- nobody could register it
            RAISE EXCEPTION 'producer_group % is not a group''s name', quote_literal(m.producer_group)
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_half_has_a_group', COLUMN = 'producer_group',
                      HINT = 'Allowed: 1 to 255 characters without white space and control characters.';
        END IF;
        IF m.lane IS NULL THEN
            lane := outbox.lane_of(m.topic, m.queue, coalesce(m.order_key, m.key), m.id);
        END IF;
    END IF;
    IF group_role IS NOT NULL
       OR (group_type <> 'MIXED' AND (group_type = 'TRANSACTION') <> (m.state = 'UNKNOWN')) THEN
        PERFORM outbox.require_fit_for_group(m, group_type);
    END IF;
    IF num_nonnulls(m.deliver_at, m.deliver_before) > 0 THEN
        IF m.deliver_at < '0001-01-01 UTC' OR m.deliver_at > '9999-12-31 UTC' THEN
            RAISE EXCEPTION 'deliver_at % is not a valid time; expected the years 1 to 9999', m.deliver_at
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_deliver_at_is_a_time', COLUMN = 'deliver_at',
                      HINT = 'Allowed: the years 1 to 9999, or null to publish at once.';
        END IF;
        IF m.deliver_before < '0001-01-01 UTC' OR m.deliver_before > '9999-12-31 UTC' OR m.deliver_before <= m.deliver_at THEN
            RAISE EXCEPTION 'deliver_before % is not a time that is left to publish the message%', m.deliver_before,
                    coalesce(format('; deliver_at is %s', m.deliver_at), '')
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_deliver_before_is_later', COLUMN = 'deliver_before',
                      HINT = 'Allowed: the years 1 to 9999, after deliver_at if that is given, or null to publish at any time.';
        END IF;
    END IF;
    IF m.state = 'UNKNOWN' THEN
        IF m.producer_group IS NULL THEN
            RAISE EXCEPTION 'a half message needs a producer_group'
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_half_has_a_group', COLUMN = 'producer_group',
                      HINT = 'It names who is asked when the producer falls silent. Give producer_group.';
        END IF;
        INSERT INTO outbox.event (id, message_id, kind, to_state, actor)
        VALUES (m.id, m.message_id, 'transition', 'UNKNOWN', outbox.actor());
    ELSIF m.state IS DISTINCT FROM 'COMMITTED' THEN
        RAISE EXCEPTION 'a message cannot be born %', coalesce(m.state, 'NULL')
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_state_is_a_birth', COLUMN = 'state',
                  HINT = 'Allowed: COMMITTED (the default), or UNKNOWN for a half message.';
    ELSIF m.deliver_at > clock_timestamp() THEN
        INSERT INTO outbox.waiting (id, message_id, reason, due_at)
        VALUES (m.id, m.message_id, 'delayed', m.deliver_at);
    END IF;
    RETURN lane;
END $$;
REVOKE ALL ON FUNCTION outbox.admit_closely(outbox.message) FROM PUBLIC;
-- Also if another role upgrades than the one that made the schema: admit_message calls it with its owner's rights.
DO $$ BEGIN
    EXECUTE (SELECT format('ALTER FUNCTION outbox.admit_closely(outbox.message) OWNER TO %I', pg_get_userbyid(p.proowner))
             FROM pg_catalog.pg_proc p WHERE p.oid = 'outbox.admit_message()'::regprocedure);
END $$;
-- Called for unusual rows only, where one more setting does not count.
ALTER FUNCTION outbox.check_record(outbox.message) SET standard_conforming_strings = on;

-- Looks at each row that is inserted. A row that states its lane is not looked at closely if its writer is trusted to have
-- checked it, as the library does. A half message and a delayed one always are, for what is written beside them.
-- There is no WHEN: PL/pgSQL keeps its condition ready. With the owner's rights, since producers may write neither
-- outbox.event nor outbox.waiting, but without SET search_path, which every row would pay for. So every name and operator
-- states its schema, and there is no syntax that looks for an operator, such as CASE x WHEN or IN: the session's search_path
-- is the writer's. Trust is asked of the acting role (SET ROLE, else the login), which the owner's rights do not change.
CREATE OR REPLACE FUNCTION outbox.admit_message() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF (NEW.lane IS NOT NULL AND NEW.state OPERATOR(pg_catalog.=) 'COMMITTED' AND NEW.deliver_at IS NULL
        AND pg_catalog.has_function_privilege(outbox.acting_role(), 'outbox.trusts_stated_lanes()'::pg_catalog.regprocedure,
                                              'EXECUTE')) IS NOT TRUE THEN
        NEW.lane := outbox.admit_closely(NEW);
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE TRIGGER message_admission BEFORE INSERT ON outbox.message FOR EACH ROW
    EXECUTE FUNCTION outbox.admit_message();
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_admission;

-- A message id made here carries the row's id in its first 48 bits and is of version 8 (RFC 9562: custom), so that looking a
-- message up by its message id needs no second index. Behind the version come the lower 12 bits of the session's process id;
-- behind the variant its upper 10 and 52 bits of random(), which has 48 on PostgreSQL 14 and leaves the last four zero. Row ids
-- are issued again after a fail-over, message ids are not. floor: a random() of more bits must not round up into the variant.
CREATE OR REPLACE FUNCTION outbox.new_message_id(id bigint) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL RESTRICTED
    RETURN (lpad(to_hex(id << 16 | 32768 | (pg_backend_pid() & 4095)), 16, '0')
            || to_hex(-9223372036854775808 + ((pg_backend_pid() & 4190208)::bigint << 40)
                      + floor(random() * 4503599627370496)::bigint))::uuid;

UPDATE outbox.schema_version SET oldest_software = '0001';
SET LOCAL lock_timeout = DEFAULT;
