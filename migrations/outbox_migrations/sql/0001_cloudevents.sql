-- CloudEvents 1.0 in Kafka's binary mode: a message whose headers have a name that begins with "ce_" is an event. These are
-- the rules of outbox/cloudevents/attributes.py; the relay adds ce_id and ce_time where they are missing.

-- What is wrong with the headers of an event, beginning with the name of the header; null: nothing, or it is no event.
CREATE FUNCTION outbox.cloudevent_fault(headers jsonb) RETURNS text
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
COMMENT ON FUNCTION outbox.cloudevent_fault(jsonb) IS 'What makes these headers no CloudEvent in binary mode; null if nothing does.';

-- The headers that the relay adds to the record of an event; none to other messages.
CREATE FUNCTION outbox.cloudevent_headers(m outbox.message) RETURNS TABLE (name text, value text)
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT a.name, a.value
    FROM (VALUES ('ce_id', (m).message_id::text),
                 ('ce_time', to_char((m).born_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'))) AS a (name, value)
    WHERE (m).headers ? 'ce_specversion' AND NOT (m).headers ? a.name;
END;
