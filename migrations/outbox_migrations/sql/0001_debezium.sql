-- For teams that come from Debezium's outbox event router: a view with the columns of its table, whose trigger sends. The writers
-- stay as they are. See docs/how-to/debezium.md.

-- Sends a row of such a view as the event router would publish it: topic by the first argument, key aggregateid, value payload,
-- header id. The second argument places further columns as headers: Debezium's table.fields.additional.placement, with
-- "header" only. A null aggregatetype or a row without the columns is refused by name. With the rights of the caller, who
-- needs those of outbox_producer. The topic is Debezium's route.topic.replacement, with ${routedByValue} for the aggregatetype.
CREATE FUNCTION outbox.send_router_event() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET bytea_output = 'hex' AS $$
DECLARE
    given   jsonb := to_jsonb(NEW);
    headers jsonb := '{}';
    topic   text := replace(coalesce(TG_ARGV[0], 'outbox.event.${routedByValue}'), '${routedByValue}', NEW.aggregatetype);
    payload bytea;
    part    text[];
    sent    uuid;
BEGIN
    IF topic IS NULL THEN
        RAISE EXCEPTION 'aggregatetype is null, and names the topic'
            USING ERRCODE = 'check_violation', COLUMN = 'aggregatetype', HINT = 'Give the type of the aggregate.';
    END IF;
    FOR part IN SELECT string_to_array(trim(p), ':') FROM regexp_split_to_table(nullif(TG_ARGV[1], ''), ',') p LOOP
        IF part[2] IS DISTINCT FROM 'header' OR NOT given ? part[1] OR cardinality(part) > 3 THEN
            RAISE EXCEPTION 'the placement % of trigger % is not one of this view', quote_literal(array_to_string(part, ':')), TG_NAME
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'Allowed: column:header or column:header:name, separated by commas, of columns of the view.';
        END IF;
        headers := headers || jsonb_build_object(coalesce(part[3], part[1]), given -> part[1] #>> '{}');
    END LOOP;
    payload := CASE WHEN pg_typeof(NEW.payload) = 'bytea'::regtype THEN decode(substr(NEW.payload::text, 3), 'hex')
                    ELSE convert_to(NEW.payload::text, 'UTF8') END;
    IF NEW.id IS NULL THEN
        INSERT INTO outbox.message (topic, key, body, headers)
        VALUES (topic, convert_to(NEW.aggregateid::text, 'UTF8'), payload, nullif(headers, '{}'))
        RETURNING message_id INTO sent;
        NEW.id := sent;
    ELSE
        INSERT INTO outbox.message (topic, key, body, headers, message_id)
        VALUES (topic, convert_to(NEW.aggregateid::text, 'UTF8'), payload, headers || jsonb_build_object('id', NEW.id::text),
                NEW.id::text::uuid);
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION outbox.send_router_event() IS
    'INSTEAD OF INSERT on a view with the columns of Debezium''s outbox table; see docs/how-to/debezium.md.';
