-- The relay states the order of a message in a header, where it is not the order of the record's key: so the size of a record
-- has one more header. The library does the same; see order_header in outbox/wire.py.

-- The header with a message's order, if its record has one. The order is the partition's if the row names one, without a
-- selector of its producer that chose it, or without an argument for that. Else it is the order key's, if that is not the key. A
-- long one is represented by its hash, and bytes that are no text, or could be taken for digits, by hexadecimal digits.
CREATE FUNCTION outbox.order_headers(m outbox.message) RETURNS TABLE (name text, value text)
    LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'outbox-queue', (m).queue::text
    WHERE (m).queue IS NOT NULL AND ((m).selector IS NULL OR coalesce((m).order_key, (m).key) IS NULL)
    UNION ALL
    SELECT 'outbox-order-key',
        CASE WHEN starts_with(outbox.utf8_or_null(k.short), 'hex:') IS NOT FALSE THEN 'hex:' || encode(k.short, 'hex')
             ELSE outbox.utf8_or_null(k.short) END
    FROM (SELECT CASE WHEN octet_length((m).order_key) > 255 THEN 'sha256:'::bytea || sha256((m).order_key)
                      ELSE (m).order_key END AS short) k
    WHERE (m).order_key <> (m).key IS NOT FALSE AND (m).order_key IS NOT NULL
        AND ((m).queue IS NULL OR (m).selector IS NOT NULL);
END;
COMMENT ON FUNCTION outbox.order_headers(outbox.message) IS 'The header of a message''s record that states its order, if there is one.';

CREATE OR REPLACE FUNCTION outbox.record_size(m outbox.message) RETURNS bigint
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
          UNION ALL SELECT o.name, o.value FROM outbox.order_headers(m) o
          UNION ALL SELECT c.name, c.value FROM outbox.cloudevent_headers(m) c) AS h (name, value);
    size := 3 + size + outbox.varint_size(headers)
        + outbox.field_size(octet_length(m.key)) + outbox.field_size(octet_length(m.body));
    RETURN 61 + outbox.varint_size(size) + size;
END $$;
