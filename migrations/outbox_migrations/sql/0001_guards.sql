-- The table of messages guards itself: what a row may hold, how it is born, and how its state changes.
-- Whoever writes, in whatever language, cannot write nonsense, and the audit is written with the deed.

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

-- What one row may hold, which births there are, and what is written beside them: the lane, the audit of a half message,
-- the wait of a delayed one. One cheap condition finds whatever might be wrong; only such rows are looked at closely.
-- With the owner's rights, since producers may write neither outbox.event nor outbox.waiting.
CREATE FUNCTION outbox.admit_message() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NEW.lane IS NULL THEN
        IF length(NEW.topic) NOT BETWEEN 1 AND 249 OR NEW.topic ~ '[^a-zA-Z0-9._-]' OR NEW.topic IN ('.', '..')
           OR NEW.queue < 0
           OR (NEW.tags <> '{}' AND NEW.tags::text ~ '[|"]|NULL')
           OR (NEW.index_keys <> '{}' AND NEW.index_keys::text ~ '[\s"]|NULL')
           OR (NEW.headers IS NOT NULL
               AND (NEW.headers::text ~* '"(outbox-|traceparent")|\\u'
                    OR jsonb_path_exists(NEW.headers, '$.* ? (@.type() != "string" && @.type() != "null")')
                    OR jsonb_typeof(NEW.headers) <> 'object'))
           OR (substr(uuid_send(NEW.message_id), 1, 6) <> substr(int8send(NEW.id), 3, 6)
               AND get_byte(uuid_send(NEW.message_id), 6) >> 4 = 8) THEN
            PERFORM outbox.look_closely(NEW.id, NEW.message_id, NEW.topic, NEW.queue, NEW.tags, NEW.index_keys,
                                        NEW.headers);
        END IF;
        NEW.lane := outbox.lane_of(NEW.topic, NEW.queue, coalesce(NEW.order_key, NEW.key), NEW.id);
    END IF;
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
    IF NEW.deliver_at < '0001-01-01 UTC' OR NEW.deliver_at > '9999-12-31 UTC' THEN
        RAISE EXCEPTION 'deliver_at % is no time that can be waited for', NEW.deliver_at
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_deliver_at_is_a_time',
                  HINT = 'Allowed: the years 1 to 9999.';
    END IF;
    RETURN NEW;
END $$;
-- The library has checked what it sends and says the lane with it, so the trigger, a third of what the insert would
-- cost, need not run. What is written beside a message and which states it may be born in does not depend on that.
-- PostgreSQL reads a WHEN from its text for every INSERT: each comparison in it is a twentieth of what the insert costs,
-- and a second trigger a tenth. That a lane is one of 0 to 7 is the domain's to say.
CREATE TRIGGER message_admission BEFORE INSERT ON outbox.message FOR EACH ROW
    WHEN (NEW.lane IS NULL OR NEW.state <> 'COMMITTED' OR NEW.deliver_at IS NOT NULL)
    EXECUTE FUNCTION outbox.admit_message();

-- The transitions of outbox.transition as an expression, made from the table: asking the table itself was a third of what
-- a decision cost. Whoever adds a transition makes this anew.
DO $$ BEGIN
    EXECUTE (
        SELECT format('CREATE FUNCTION outbox.is_transition(from_state text, to_state text) RETURNS boolean
                       LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN (from_state, to_state) IN (%s)',
                      string_agg(format('(%L, %L)', t.from_state, t.to_state), ', '))
        FROM outbox.transition t WHERE t.from_state IS NOT NULL
    );
END $$;

-- One statement decides, in any language:
--   UPDATE outbox.message SET state = 'COMMITTED', remark = … WHERE id = … AND state = 'UNKNOWN'
-- The row takes its xid and then its position at that moment, and the audit row is written with it. Two that race
-- meet at the row's lock; the second then finds it decided and updates nothing.
-- A cancellation races with the relay, which releases a delayed message when it is due: both lock the message, then
-- delete its row in outbox.waiting. Who comes second finds none: the relay goes on, the cancellation is refused.
CREATE FUNCTION outbox.make_transition() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT outbox.is_transition(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'message % is % and cannot become %', OLD.message_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_transition',
                  HINT = 'The allowed transitions are in outbox.transition.';
    END IF;
    -- Whether a message can be published is the relay's to say, and what it found published must not come again.
    IF 'DEAD' IN (OLD.state, NEW.state)
       AND NOT has_column_privilege(session_user, 'outbox.message', 'xid', 'UPDATE') THEN
        RAISE EXCEPTION 'message % may become or cease to be DEAD by the relay and by operators only', OLD.message_id
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    NEW.xid := pg_current_xact_id();
    NEW.decided_at := clock_timestamp();
    IF NEW.state = 'DEAD' THEN
        DELETE FROM outbox.waiting w WHERE w.id = OLD.id AND w.reason = 'delayed';
    ELSIF NEW.state = 'COMMITTED' THEN
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

-- These act with the owner's rights: nobody may hang them on a table of his own.
REVOKE ALL ON FUNCTION outbox.admit_message(), outbox.make_transition() FROM PUBLIC;
