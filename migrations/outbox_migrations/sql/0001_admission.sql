-- What a row of outbox.message may hold when it is inserted: the rules of the library, for every language and every role.
-- A row that breaks one is refused with SQLSTATE 23514 (a message id that is there already: 23505), the name of the rule as
-- constraint, the name of the column, and a hint of what is allowed.

-- Roles that may execute this are trusted to have checked a row whose lane they state; see outbox.admit_message. The
-- schema's owner may. Grant the role outbox_trusted_producer to applications that send with the Python library only.
CREATE FUNCTION outbox.trusts_stated_lanes() RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN true;
COMMENT ON FUNCTION outbox.trusts_stated_lanes() IS
    'Roles that may execute this insert rows with a stated lane unchecked; see docs/adr/0004.';

-- Bytes of a variable-length integer in a Kafka record: seven bits each, the first of them for the sign.
CREATE FUNCTION outbox.varint_size(number bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN number < 64 THEN 1 WHEN number < 8192 THEN 2 WHEN number < 1048576 THEN 3
                WHEN number < 134217728 THEN 4 ELSE 5 END;

-- Bytes of a field of a Kafka record with its length in front; null takes one byte.
CREATE FUNCTION outbox.field_size(length bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN length IS NULL THEN 1 ELSE outbox.varint_size(length) + length END;

-- Bytes of the message's record batch, which Kafka compares with max.message.bytes: 61 of the batch, 3 of the record,
-- key, value and headers. The same sum as the library's. https://kafka.apache.org/documentation/#recordbatch
CREATE FUNCTION outbox.record_size(m outbox.message) RETURNS bigint
    LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    headers integer;
    size    bigint;
BEGIN
    SELECT count(*), coalesce(sum(outbox.field_size(octet_length(h.name)) + outbox.field_size(octet_length(h.value))), 0)
    INTO headers, size
    FROM (SELECT 'outbox-id', m.message_id::text
          UNION ALL SELECT 'outbox-born-at', (date_part('epoch', m.born_at) * 1000)::bigint::text
          UNION ALL SELECT 'outbox-deliver-at', (date_part('epoch', m.deliver_at) * 1000)::bigint::text WHERE m.deliver_at IS NOT NULL
          UNION ALL SELECT 'outbox-tags', array_to_string(m.tags, '||') WHERE m.tags <> '{}'
          UNION ALL SELECT 'outbox-keys', array_to_string(m.index_keys, ' ') WHERE m.index_keys <> '{}'
          UNION ALL SELECT 'outbox-producer-group', m.producer_group WHERE m.producer_group IS NOT NULL
          UNION ALL SELECT 'outbox-transaction-id', m.transaction_id WHERE m.transaction_id IS NOT NULL
          UNION ALL SELECT 'traceparent', m.traceparent WHERE m.traceparent IS NOT NULL
          UNION ALL SELECT u.key, u.value FROM jsonb_each_text(m.headers) u
          UNION ALL SELECT c.name, c.value FROM outbox.cloudevent_headers(m) c) AS h (name, value);
    size := 3 + size + outbox.varint_size(headers)
        + outbox.field_size(octet_length(m.key)) + outbox.field_size(octet_length(m.body));
    RETURN 61 + outbox.varint_size(size) + size;
END $$;

-- Refuses, by name, what a row must not hold whatever its topic and group are; lets pass what only looked wrong.
CREATE FUNCTION outbox.check_record(m outbox.message) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bad   text;
    bytes bigint;
BEGIN
    IF m.topic IS NULL OR octet_length(m.topic) NOT BETWEEN 1 AND 249 OR m.topic ~ '[^a-zA-Z0-9._-]' OR m.topic IN ('.', '..') THEN
        RAISE EXCEPTION 'topic % is not a legal Kafka topic name', coalesce(quote_literal(left(m.topic, 260)), 'NULL')
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_topic_is_legal', COLUMN = 'topic',
                  HINT = 'Allowed: 1 to 249 of a-z, A-Z, 0-9, ".", "_" and "-"; not "." or "..".';
    END IF;
    IF m.queue < 0 THEN
        RAISE EXCEPTION 'queue % is not a partition', m.queue
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_queue_is_a_partition', COLUMN = 'queue',
                  HINT = 'Partitions are numbered from 0.';
    END IF;
    IF m.tags IS NULL OR array_ndims(m.tags) > 1 OR array_position(m.tags, NULL) IS NOT NULL OR '' = ANY (m.tags)
       OR array_to_string(m.tags, ' ') ~ '\|' THEN
        RAISE EXCEPTION 'tags must not be empty, null, nested or contain "|"'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_tags_are_separable', COLUMN = 'tags',
                  HINT = 'Tags are joined by "||" in the record header outbox-tags. Allowed: a flat array of texts, or ''{}''.';
    END IF;
    IF m.index_keys IS NULL OR array_ndims(m.index_keys) > 1 OR array_position(m.index_keys, NULL) IS NOT NULL
       OR '' = ANY (m.index_keys) OR array_to_string(m.index_keys, '') ~ '\s' THEN
        RAISE EXCEPTION 'index_keys must not be empty, null, nested or contain white space'
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_index_keys_are_separable', COLUMN = 'index_keys',
                  HINT = 'Index keys are joined by one space in the record header outbox-keys. Allowed: a flat array of texts, or ''{}''.';
    END IF;
    IF jsonb_typeof(m.headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object of strings, not %', jsonb_typeof(m.headers)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_headers_are_text', COLUMN = 'headers',
                  HINT = 'Allowed: an object whose values are strings or null, as {"content-type": "text/plain"}.';
    END IF;
    SELECT h.key INTO bad FROM jsonb_each(m.headers) h WHERE jsonb_typeof(h.value) NOT IN ('string', 'null') LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'headers: the value of % is not a string', quote_literal(left(bad, 100))
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_headers_are_text', COLUMN = 'headers',
                  HINT = 'Allowed: an object whose values are strings or null. Write a number or a list as text.';
    END IF;
    SELECT h.key INTO bad FROM jsonb_object_keys(m.headers) h(key)
        WHERE h.key = '' OR starts_with(lower(h.key), 'outbox-') OR lower(h.key) = 'traceparent' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'headers: the name % is empty or reserved', quote_literal(left(bad, 100))
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_header_is_not_reserved', COLUMN = 'headers',
                  HINT = 'Reserved: names beginning with "outbox-" in any case; traceparent has a column of its own.';
    END IF;
    bad := outbox.cloudevent_fault(m.headers);
    IF bad IS NOT NULL THEN
        RAISE EXCEPTION 'headers of a CloudEvent: %', bad
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_cloudevent_is_complete', COLUMN = 'headers',
                  HINT = 'Headers that begin with ce_ are the attributes of a CloudEvent. The relay adds ce_id and ce_time.';
    END IF;
    IF m.traceparent !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$' THEN
        RAISE EXCEPTION 'traceparent % is not a W3C traceparent', quote_literal(left(m.traceparent, 80))
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_traceparent_is_w3c', COLUMN = 'traceparent',
                  HINT = 'Allowed: version-traceid-parentid-flags in lower-case hexadecimal, 2, 32, 16 and 2 digits, or null.';
    END IF;
    SELECT t.name INTO bad
    FROM (VALUES ('producer_group', m.producer_group), ('transaction_id', m.transaction_id), ('checker', m.checker),
                 ('biz_type', m.biz_type), ('biz_id', m.biz_id), ('selector', m.selector)) AS t (name, value)
    WHERE length(t.value) NOT BETWEEN 1 AND 255 LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION '% is empty or longer than 255 characters', bad
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_text_is_short', COLUMN = bad,
                  HINT = 'Allowed: 1 to 255 characters, or null to leave it out. What is longer belongs into body or headers.';
    END IF;
    IF octet_length(m.order_key) > 1048576 THEN
        RAISE EXCEPTION 'order_key takes % bytes', octet_length(m.order_key)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_order_key_is_short', COLUMN = 'order_key',
                  HINT = 'Allowed: up to 1048576 bytes. A digest of a long key orders as well.';
    END IF;
    -- No topic takes this much, whatever it is registered with.
    bytes := coalesce(octet_length(m.body)::bigint, 0) + coalesce(octet_length(m.key), 0)
        + coalesce(octet_length(m.headers::text), 0) + octet_length(array_to_string(m.tags, '||'))
        + octet_length(array_to_string(m.index_keys, ' '));
    IF bytes > 67108864 THEN
        RAISE EXCEPTION 'body, key, headers, tags and index_keys take % bytes', bytes
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_is_not_too_large', COLUMN = 'body',
                  HINT = 'Allowed: up to 67108864 bytes in sum, and what the topic is registered for (outbox.topic.max_message_bytes).';
    END IF;
    IF m.selector IS NOT NULL AND m.queue IS NULL THEN
        IF m.selector NOT IN ('murmur2', 'modulo', 'random', 'round_robin', 'java_hash', 'crc32') THEN
            RAISE EXCEPTION 'selector % is not built in, and the row names no queue', quote_literal(m.selector)
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_selector_is_known', COLUMN = 'selector',
                      HINT = 'Allowed: murmur2, modulo, random, round_robin, java_hash, crc32; or give the partition as queue.';
        ELSIF m.selector IN ('murmur2', 'java_hash', 'crc32') AND m.order_key IS NULL AND m.key IS NULL THEN
            RAISE EXCEPTION 'selector % has nothing to hash', m.selector
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_selector_has_its_key', COLUMN = 'selector',
                      HINT = 'Give an order_key or a key, or leave selector out.';
        ELSIF m.selector = 'modulo' THEN
            PERFORM outbox.require_whole_number(coalesce(m.order_key, m.key));
        ELSIF m.selector = 'java_hash' THEN
            PERFORM outbox.require_java_text(coalesce(m.order_key, m.key));
        END IF;
    END IF;
    IF m.check_after IS NOT NULL THEN
        IF m.state <> 'UNKNOWN' THEN
            RAISE EXCEPTION 'check_after is given for a message that is not a half message'
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_check_after_is_of_a_half', COLUMN = 'check_after',
                      HINT = 'Leave check_after out, or send a half message: state = ''UNKNOWN''.';
        ELSIF m.check_after NOT BETWEEN interval '0' AND interval '3650 days' THEN
            RAISE EXCEPTION 'check_after % is out of range', m.check_after
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_check_after_is_a_delay', COLUMN = 'check_after',
                      HINT = 'Allowed: 0 seconds to 3650 days, or null for the delay of the producer group.';
        END IF;
    END IF;
    -- An id of version 8 carries the row's own id (see new_message_id); any other version may come from outside.
    IF outbox.id_of(m.message_id) <> m.id THEN
        RAISE EXCEPTION 'message_id % is of version 8, which only the outbox makes, and row % gets another one',
                m.message_id, m.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_id_is_ours_or_foreign', COLUMN = 'message_id',
                  HINT = 'Leave message_id and id out: both are generated. An id of your own goes into message_id, as a UUID of version 4 or 7.';
    ELSIF outbox.id_of(m.message_id) IS NULL AND EXISTS (
        SELECT FROM outbox.message other
        WHERE other.message_id = m.message_id AND get_byte(uuid_send(other.message_id), 6) >> 4 <> 8
    ) THEN
        RAISE EXCEPTION 'message_id % is the id of another message', m.message_id
            USING ERRCODE = 'unique_violation', CONSTRAINT = 'message_id_is_unique', COLUMN = 'message_id',
                  HINT = 'The message may have been sent already. Otherwise give a new UUID, or leave message_id out.';
    END IF;
END $$;

-- Refuses, by name, what the registered topic does not take: the rules of the library's `send` and `prepare`.
CREATE FUNCTION outbox.require_fit_for_topic(m outbox.message, t outbox.topic) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- The type of a message: half before delayed before ordered. A key orders too, where the topic is FIFO.
    given text := CASE WHEN m.state = 'UNKNOWN' THEN 'TRANSACTION' WHEN m.deliver_at IS NOT NULL THEN 'DELAY'
                       WHEN m.order_key IS NOT NULL OR (t.message_type = 'FIFO' AND m.key IS NOT NULL) THEN 'FIFO'
                       ELSE 'NORMAL' END;
    chosen text := CASE WHEN m.queue IS NULL THEN coalesce(m.selector, t.selector) END;
BEGIN
    IF t.message_type NOT IN ('MIXED', given) THEN
        RAISE EXCEPTION 'topic % is of type %, the message of type %', quote_literal(m.topic), t.message_type, given
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_type_is_the_topics', COLUMN = 'topic',
                  HINT = 'This topic takes ' || CASE t.message_type
                      WHEN 'NORMAL' THEN 'messages without order_key and deliver_at'
                      WHEN 'FIFO' THEN 'messages with an order_key or a key, and without deliver_at'
                      WHEN 'DELAY' THEN 'messages with deliver_at'
                      ELSE 'half messages: state = ''UNKNOWN'''
                  END || '. A topic that takes all is of type MIXED: outbox topic alter.';
    END IF;
    IF m.queue >= t.partitions THEN
        RAISE EXCEPTION 'queue % does not exist in topic %: it has 0 to %', m.queue, quote_literal(m.topic), t.partitions - 1
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_queue_is_a_partition', COLUMN = 'queue',
                  HINT = 'outbox.topic has the number of partitions that the topic is pinned to; see: outbox topic show.';
    END IF;
    IF chosen NOT IN ('murmur2', 'modulo', 'random', 'round_robin', 'java_hash', 'crc32') THEN
        RAISE EXCEPTION 'topic % places messages by the selector %, which is an application''s own',
                quote_literal(m.topic), quote_literal(chosen)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_selector_is_known', COLUMN = 'queue',
                  HINT = 'Give the partition as queue, or a built-in selector: murmur2, modulo, random, round_robin, java_hash, crc32.';
    ELSIF chosen = 'modulo' THEN
        PERFORM outbox.require_whole_number(coalesce(m.order_key, m.key));
    ELSIF chosen = 'java_hash' THEN
        PERFORM outbox.require_java_text(coalesce(m.order_key, m.key));
    END IF;
    IF outbox.record_size(m) > t.max_message_bytes THEN
        RAISE EXCEPTION 'the message''s record takes % bytes, too many for topic %', outbox.record_size(m),
                quote_literal(m.topic)
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_fits_the_topic', COLUMN = 'body',
                  HINT = format('Allowed: up to %s bytes with key, headers and framing (outbox.topic.max_message_bytes).',
                                t.max_message_bytes);
    END IF;
END $$;

-- Refuses, by name, what a registered producer group of this type does not send, and who may not send in its name.
CREATE FUNCTION outbox.require_fit_for_group(m outbox.message, group_type text) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF group_type <> 'MIXED' AND (group_type = 'TRANSACTION') <> (m.state = 'UNKNOWN') THEN
        RAISE EXCEPTION 'producer group % is registered for % messages, not for %', quote_literal(m.producer_group),
                CASE group_type WHEN 'TRANSACTION' THEN 'half' ELSE 'normal' END,
                CASE group_type WHEN 'TRANSACTION' THEN 'normal messages' ELSE 'half messages' END
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_type_is_the_groups', COLUMN = 'producer_group',
                  HINT = 'A group that sends both is of type MIXED (outbox.producer_group.message_type). Use another group, or register this one as MIXED.';
    END IF;
    PERFORM outbox.require_group(m.producer_group);
END $$;

-- Refuses, by name, an order key that modulo cannot divide.
CREATE FUNCTION outbox.require_whole_number(arg bytea) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF arg IS NULL OR octet_length(arg) > 41 OR encode(arg, 'escape') !~ '^[+-]?[0-9]{1,40}$' THEN
        RAISE EXCEPTION 'selector modulo cannot divide %', coalesce(quote_literal(encode(substr(arg, 1, 40), 'escape')), 'NULL')
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_selector_has_its_key', COLUMN = 'order_key',
                  HINT = 'Allowed: a whole number in at most 40 decimal digits as order_key, or as key where order_key is null.';
    END IF;
END $$;

-- Refuses, by name, an order key that is not the text of a Java String; null passes. length() checks the encoding.
CREATE FUNCTION outbox.require_java_text(arg bytea) RETURNS void
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM length(arg, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire THEN
    RAISE EXCEPTION 'selector java_hash cannot hash %', quote_literal(encode(substr(arg, 1, 40), 'escape'))
        USING ERRCODE = 'check_violation', CONSTRAINT = 'message_selector_has_its_key', COLUMN = 'order_key',
              HINT = 'Allowed: valid UTF-8 without NUL as order_key, or as key where order_key is null.';
END $$;

-- What one row may hold, which births there are, and what is written beside them: the lane, the audit of a half message,
-- the wait of a delayed one. One condition finds whatever might be wrong; only such rows are looked at closely. With the
-- owner's rights, since producers may write neither outbox.event nor outbox.waiting.
CREATE FUNCTION outbox.admit_message() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shape      text;
    topic_type text;
    selector   text;
    most_bytes integer;
    group_type text;
    group_role name;
BEGIN
    -- The writer's trust is asked of the acting role, where the trigger's WHEN asks it of the current one. They differ in
    -- a function with its owner's rights; who may make others call such a function could have them act for him anyway.
    IF NEW.lane IS NOT NULL
       AND has_function_privilege(outbox.acting_role(), 'outbox.trusts_stated_lanes()'::regprocedure, 'EXECUTE') THEN
        IF NEW.producer_group IS NOT NULL THEN
            SELECT g.message_type, g.role INTO group_type, group_role
            FROM outbox.producer_group g WHERE g.name = NEW.producer_group;
        END IF;
    ELSE
        -- Tags, index keys, headers, trace and topic, line by line: PostgreSQL starts each expression of a function once
        -- per transaction, and one match costs less than ten comparisons. An array quotes a line end and JSON escapes it,
        -- so the first three lines end where their columns do. Trace and topic are texts of the writer's choice. They come
        -- last, and the pattern takes no line end in either, so that neither can stand for another column.
        shape := concat(NEW.tags, e'\n', NEW.index_keys, e'\n', NEW.headers, e'\n', NEW.traceparent, e'\n', NEW.topic);
        -- Unusual, not wrong: texts that an array quotes, tags that begin like NULL, headers with a backslash or with a
        -- name that begins like a reserved one or like that of an event's attribute, ids from outside.
        IF shape !~ ('^\{(([^|"{},N]|N[^|"{},U])[^|"{},]*,?)*\}\n'
                     '\{(([^\s"{},N]|N[^\s"{},U])[^\s"{},]*,?)*\}\n'
                     '(\{("([^"\\coOtT]|c[^"\\e]|[oO][^"\\uU]|[tT][^"\\rR])[^"\\]*": ("[^"\\]*"|null)(, )?)*\})?\n'
                     '([0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})?\n'
                     '[a-zA-Z0-9._-]+$')
           OR octet_length(shape) > 8192 OR octet_length(NEW.topic) > 249 OR NEW.topic IN ('.', '..')
           OR greatest(octet_length(NEW.body), octet_length(NEW.key), octet_length(NEW.order_key)) > 16384
           OR num_nonnulls(NEW.queue, NEW.selector, NEW.check_after) > 0
           OR octet_length(concat(NEW.producer_group, NEW.transaction_id, NEW.checker, NEW.biz_type, NEW.biz_id)) > 255
           OR least(NEW.producer_group, NEW.transaction_id, NEW.checker, NEW.biz_type, NEW.biz_id, NEW.traceparent) = ''
           OR substr(uuid_send(NEW.message_id), 1, 6) <> substr(int8send(NEW.id), 3) THEN
            PERFORM outbox.check_record(NEW);
        END IF;
        SELECT t.message_type, t.selector, t.max_message_bytes, g.message_type, g.role
        INTO topic_type, selector, most_bytes, group_type, group_role
        FROM (SELECT) AS one
        LEFT JOIN outbox.topic t ON t.name = NEW.topic
        LEFT JOIN outbox.producer_group g ON g.name = NEW.producer_group;
        -- 5000: what framing and the names in front of the record's own headers take at most, and the two short texts.
        IF topic_type <> 'MIXED' OR selector IS NOT NULL OR (topic_type IS NOT NULL AND NEW.queue IS NOT NULL)
           OR 5000 + coalesce(octet_length(NEW.body)::bigint, 0) + coalesce(octet_length(NEW.key), 0)
              + 3 * octet_length(shape) > most_bytes THEN
            PERFORM outbox.require_fit_for_topic(NEW, t) FROM outbox.topic t WHERE t.name = NEW.topic;
        END IF;
        IF NEW.state = 'UNKNOWN' AND NEW.producer_group ~ '[[:space:][:cntrl:]]' THEN  -- nobody could register it
            RAISE EXCEPTION 'producer_group % is not a group''s name', quote_literal(NEW.producer_group)
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_half_has_a_group', COLUMN = 'producer_group',
                      HINT = 'Allowed: 1 to 255 characters without white space and control characters.';
        END IF;
        IF NEW.lane IS NULL THEN
            NEW.lane := outbox.lane_of(NEW.topic, NEW.queue, coalesce(NEW.order_key, NEW.key), NEW.id);
        END IF;
    END IF;
    IF group_role IS NOT NULL
       OR (group_type <> 'MIXED' AND (group_type = 'TRANSACTION') <> (NEW.state = 'UNKNOWN')) THEN
        PERFORM outbox.require_fit_for_group(NEW, group_type);
    END IF;
    IF NEW.deliver_at < '0001-01-01 UTC' OR NEW.deliver_at > '9999-12-31 UTC' THEN
        RAISE EXCEPTION 'deliver_at % is not a valid time; expected the years 1 to 9999', NEW.deliver_at
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_deliver_at_is_a_time', COLUMN = 'deliver_at',
                  HINT = 'Allowed: the years 1 to 9999, or null to publish at once.';
    END IF;
    IF NEW.deliver_before < '0001-01-01 UTC' OR NEW.deliver_before > '9999-12-31 UTC' OR NEW.deliver_before <= NEW.deliver_at THEN
        RAISE EXCEPTION 'deliver_before % is not a time that is left to publish the message%', NEW.deliver_before,
                coalesce(format('; deliver_at is %s', NEW.deliver_at), '')
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_deliver_before_is_later', COLUMN = 'deliver_before',
                  HINT = 'Allowed: the years 1 to 9999, after deliver_at if that is given, or null to publish at any time.';
    END IF;
    IF NEW.state = 'UNKNOWN' THEN
        IF NEW.producer_group IS NULL THEN
            RAISE EXCEPTION 'a half message needs a producer_group'
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_half_has_a_group', COLUMN = 'producer_group',
                      HINT = 'It names who is asked when the producer falls silent. Give producer_group.';
        END IF;
        INSERT INTO outbox.event (id, message_id, kind, to_state, actor)
        VALUES (NEW.id, NEW.message_id, 'transition', 'UNKNOWN', outbox.actor());
    ELSIF NEW.state IS DISTINCT FROM 'COMMITTED' THEN
        RAISE EXCEPTION 'a message cannot be born %', coalesce(NEW.state, 'NULL')
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_state_is_a_birth', COLUMN = 'state',
                  HINT = 'Allowed: COMMITTED (the default), or UNKNOWN for a half message.';
    ELSIF NEW.deliver_at > clock_timestamp() THEN
        INSERT INTO outbox.waiting (id, message_id, reason, due_at)
        VALUES (NEW.id, NEW.message_id, 'delayed', NEW.deliver_at);
    END IF;
    RETURN NEW;
END $$;
-- A row that states its lane is not looked at if its writer is trusted to have checked it, as the library does: the checks
-- cost a third of what the insert does. A half message and a delayed one always are, for what is written beside them.
-- PostgreSQL reads a WHEN from its text for every INSERT: each comparison in it is a twentieth of what the insert costs,
-- and a second trigger a tenth. That a lane is one of 0 to 7 is the domain's to check.
CREATE TRIGGER message_admission BEFORE INSERT ON outbox.message FOR EACH ROW
    WHEN (NEW.lane IS NULL OR NEW.state <> 'COMMITTED' OR NEW.deliver_at IS NOT NULL
          OR NOT has_function_privilege('outbox.trusts_stated_lanes()'::regprocedure, 'EXECUTE'))
    EXECUTE FUNCTION outbox.admit_message();

-- A group that is bound to a role is its members' alone: refuses everybody else who uses its name.
CREATE FUNCTION outbox.require_group(producer_group text) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT outbox.may_act_for(producer_group) THEN
        RAISE EXCEPTION 'producer group % is bound to a role of which % is not a member', quote_literal(producer_group),
                quote_ident(outbox.acting_role())
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('GRANT %I TO %I, or use another producer group.',
                                (SELECT g.role FROM outbox.producer_group g WHERE g.name = require_group.producer_group),
                                outbox.acting_role());
    END IF;
END $$;

-- Idempotency keys are a group's as well: noted by somebody else they would suppress its messages.
CREATE FUNCTION outbox.admit_idempotency_key() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox.producer_group g WHERE g.name = NEW.producer_group AND g.role IS NOT NULL) THEN
        PERFORM outbox.require_group(NEW.producer_group);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER idempotency_admission BEFORE INSERT ON outbox.idempotency FOR EACH ROW
    EXECUTE FUNCTION outbox.admit_idempotency_key();
ALTER TABLE outbox.idempotency ENABLE ALWAYS TRIGGER idempotency_admission;

-- They act with the owner's rights or serve one that does; and nobody is trusted without a grant.
REVOKE ALL ON FUNCTION outbox.admit_message(), outbox.admit_idempotency_key(), outbox.check_record(outbox.message),
    outbox.require_fit_for_topic(outbox.message, outbox.topic), outbox.require_fit_for_group(outbox.message, text),
    outbox.trusts_stated_lanes() FROM PUBLIC;
