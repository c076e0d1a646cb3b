-- What revisions 0001 to 0003 may have bound to functions or operators of strangers is bound to PostgreSQL's own. They ran
-- under the search_path of whoever upgraded. Where others may create in a schema of it, as everybody could in "public" before
-- PostgreSQL 15, a function of theirs with the exact types of a call went before one of pg_catalog that needs a conversion, and
-- has run since then with the rights of who sends, decides, or owns the outbox. Now each script runs under pg_catalog alone.

-- Functions keep what their names meant when they were made. To make them again costs nothing and locks no table.
CREATE OR REPLACE FUNCTION outbox.id_of(message_id uuid) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN substr(message_id::text, 15, 1) = '8'
        THEN ('x' || substr(message_id::text, 1, 8) || substr(message_id::text, 10, 4))::bit(48)::bigint END;

CREATE OR REPLACE FUNCTION outbox.new_message_id(id bigint) RETURNS uuid
    LANGUAGE sql VOLATILE PARALLEL RESTRICTED
    RETURN (lpad(to_hex(id << 16 | 32768 | (pg_backend_pid() & 4095)), 16, '0')
            || to_hex(-9223372036854775808 + ((pg_backend_pid() & 4190208)::bigint << 40)
                      + floor(random() * 4503599627370496)::bigint))::uuid;

CREATE OR REPLACE FUNCTION outbox.acting_role() RETURNS name
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN current_setting('role') = 'none' THEN session_user ELSE current_setting('role')::name END;

CREATE OR REPLACE FUNCTION outbox.actor() RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN CASE WHEN concat(current_setting('role'), '/', current_setting('outbox.actor', true)) = 'none/'
        THEN session_user::text ELSE outbox.actor_in_full() END;

CREATE OR REPLACE FUNCTION outbox.lane_of(topic text, queue integer, order_key bytea, id bigint) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE
        WHEN queue IS NOT NULL THEN get_byte(sha256(convert_to(topic || '/' || queue::text, 'UTF8')), 0) & 7
        WHEN order_key IS NOT NULL THEN get_byte(sha256(convert_to(topic || ':', 'UTF8') || order_key), 0) & 7
        ELSE id & 7
    END::smallint;

CREATE OR REPLACE FUNCTION outbox.varint_size(number bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN number < 64 THEN 1 WHEN number < 8192 THEN 2 WHEN number < 1048576 THEN 3
                WHEN number < 134217728 THEN 4 ELSE 5 END;

CREATE OR REPLACE FUNCTION outbox.field_size(length bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN length IS NULL THEN 1 ELSE outbox.varint_size(length) + length END;

CREATE OR REPLACE FUNCTION outbox.is_operator() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN has_column_privilege(outbox.acting_role(), 'outbox.lane', 'retry_requested_at', 'UPDATE');

CREATE OR REPLACE FUNCTION outbox.is_checker() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN has_table_privilege(outbox.acting_role(), 'outbox.pending_check', 'UPDATE');

CREATE OR REPLACE FUNCTION outbox.may_act_for(producer_group text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce((SELECT g.role IS NULL
                         OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = g.role
                                    AND pg_has_role(outbox.acting_role(), r.oid, 'MEMBER'))
                         OR outbox.is_checker() OR outbox.is_operator()
                     FROM outbox.producer_group g WHERE g.name = may_act_for.producer_group), true);

CREATE OR REPLACE FUNCTION outbox.cloudevent_fault(headers jsonb) RETURNS text
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT min(f.fault)
    FROM (SELECT FROM jsonb_object_keys(headers) AS h (name) WHERE starts_with(h.name, 'ce_') LIMIT 1) AS event,
         LATERAL (
        SELECT format('%s is not the name of an attribute of CloudEvents: a-z and 0-9, and not "data"; the type of the body is '
                      'the header "content-type"', quote_literal(left(h.key, 63)))
        FROM jsonb_each_text(headers) h
        WHERE starts_with(h.key, 'ce_') AND (h.key !~ '^ce_[a-z0-9]+$' OR h.key IN ('ce_data', 'ce_datacontenttype'))
        UNION ALL
        SELECT format('%s is empty or contains a control character; leave the attribute out if it has no value', h.key)
        FROM jsonb_each_text(headers) h
        WHERE h.key ~ '^ce_[a-z0-9]+$' AND (coalesce(h.value, '') = '' OR h.value ~ '[\u0001-\u001f\u007f-\u009f]')
        UNION ALL
        SELECT format('%s is missing; CloudEvents have specversion, type and source', n.name)
        FROM (VALUES ('ce_specversion'), ('ce_type'), ('ce_source')) AS n (name) WHERE NOT headers ? n.name
        UNION ALL
        SELECT format('%s is %s; expected %s', r.name, quote_literal(left(headers ->> r.name, 60)), r.expected)
        FROM (VALUES
            ('ce_specversion', '^1\.0$', '1.0'),
            ('ce_source', '^[A-Za-z0-9._~:/?#\[\]@!$&''()*+,;=%-]+$', 'a URI-reference, as /shop/orders, other characters percent-encoded'),
            ('ce_dataschema', '^[A-Za-z][A-Za-z0-9+.-]*:[A-Za-z0-9._~:/?#\[\]@!$&''()*+,;=%-]*$', 'a URI, as https://example.com/order.json'),
            ('ce_time', '^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:([0-5][0-9]|60)'
                        '(\.[0-9]+)?([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$', 'RFC 3339, as 2026-11-25T12:00:00Z'),
            ('content-type', '^[a-zA-Z0-9!#$&^_.+-]+/[a-zA-Z0-9!#$&^_.+-]+ *(;[ -~]*)?$', 'a media type, as application/json')
        ) AS r (name, pattern, expected)
        WHERE headers ->> r.name !~ r.pattern
        UNION ALL
        SELECT 'content-type is that of an event in the body (structured mode), and the attributes are headers; '
               'expected the media type of the data, or no headers that begin with ce_'
        WHERE starts_with(lower(headers ->> 'content-type'), 'application/cloudevents')
    ) AS f (fault);
END;

CREATE OR REPLACE FUNCTION outbox.cloudevent_headers(m outbox.message) RETURNS TABLE (name text, value text)
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT a.name, a.value
    FROM (VALUES ('ce_id', (m).message_id::text),
                 ('ce_time', to_char((m).born_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))) AS a (name, value)
    WHERE (m).headers ? 'ce_specversion' AND NOT (m).headers ? a.name;
END;

CREATE OR REPLACE FUNCTION outbox.send(topic text, body text, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                            order_key text DEFAULT NULL, tags text[] DEFAULT '{}', index_keys text[] DEFAULT '{}',
                            producer_group text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
                            traceparent text DEFAULT NULL, deliver_before timestamptz DEFAULT NULL) RETURNS uuid
    LANGUAGE sql VOLATILE
BEGIN ATOMIC
    INSERT INTO outbox.message (topic, body, key, headers, order_key, tags, index_keys, producer_group, deliver_at, traceparent,
                                deliver_before)
    VALUES (send.topic, convert_to(send.body, 'UTF8'), convert_to(send.key, 'UTF8'), send.headers,
            convert_to(send.order_key, 'UTF8'), coalesce(send.tags, '{}'), coalesce(send.index_keys, '{}'),
            send.producer_group, send.deliver_at, send.traceparent, send.deliver_before)
    RETURNING message_id;
END;

CREATE OR REPLACE FUNCTION outbox.send(topic text, body jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                            order_key text DEFAULT NULL, tags text[] DEFAULT '{}', index_keys text[] DEFAULT '{}',
                            producer_group text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
                            traceparent text DEFAULT NULL, deliver_before timestamptz DEFAULT NULL) RETURNS uuid
    LANGUAGE sql VOLATILE
    RETURN outbox.send(topic, body::text, key, headers, order_key, tags, index_keys, producer_group, deliver_at, traceparent,
                       deliver_before);

CREATE OR REPLACE FUNCTION outbox.without_invalid_event(headers jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN outbox.cloudevent_fault(headers) IS NULL THEN coalesce(headers, '{}')
                ELSE headers - (SELECT array_agg(n) FROM jsonb_object_keys(headers) n WHERE starts_with(n, 'ce_')) END;
END;

CREATE OR REPLACE FUNCTION outbox.dead_letter_headers(letter outbox.inbox_parked, consumer_group text) RETURNS jsonb
    LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.without_invalid_event((SELECT jsonb_object_agg(h.name, outbox.utf8_or_null(h.value) ORDER BY h.place DESC)
                     FROM unnest((letter).header_names, (letter).header_values) WITH ORDINALITY h (name, value, place)
                     WHERE h.name <> '' AND lower(h.name) <> 'traceparent' AND NOT starts_with(lower(h.name), 'outbox-')
                         AND (h.value IS NULL OR outbox.utf8_or_null(h.value) IS NOT NULL)))
        || jsonb_build_object('dlq-group', consumer_group, 'dlq-message-id', (letter).message_id::text,
                              'dlq-topic', (SELECT t.name FROM outbox.inbox_topic t WHERE t.id = (letter).topic_id),
                              'dlq-partition', (letter).part::text, 'dlq-offset', (letter).off::text,
                              'dlq-attempts', (letter).attempts::text, 'dlq-failure', left((letter).fingerprint, 1000));
END;

CREATE OR REPLACE FUNCTION outbox.destroy_keys(subject_ text) RETURNS SETOF uuid
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.subject_key k
    SET subject = NULL, wrapped = NULL, master_id = NULL, destroyed_at = clock_timestamp(), destroyed_by = session_user
    WHERE k.subject = subject_
    RETURNING k.id;
END;

DO $$ BEGIN
    EXECUTE (
        SELECT format('CREATE OR REPLACE FUNCTION outbox.is_transition(from_state text, to_state text) RETURNS boolean
                       LANGUAGE sql IMMUTABLE PARALLEL SAFE
                       RETURN from_state || '' '' || to_state = ANY (%L::text[])',
                      array_agg(t.from_state || ' ' || t.to_state))
        FROM outbox.transition t WHERE t.from_state IS NOT NULL
    );
END $$;
