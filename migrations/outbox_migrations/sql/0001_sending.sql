-- Sending text and JSON from any language. The column "body" is bytea: a driver that binds text to it sends PostgreSQL's
-- input syntax for bytea, in which a backslash begins an escape, and so another body. A parameter of these functions is text.
-- With the rights of the caller, who needs those of outbox_producer.

CREATE FUNCTION outbox.send(topic text, body text, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
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
COMMENT ON FUNCTION outbox.send(text, text, text, jsonb, text, text[], text[], text, timestamptz, text, timestamptz) IS
    'Sends text, as UTF-8, in the caller''s transaction; returns the message id.';

CREATE FUNCTION outbox.send(topic text, body jsonb, key text DEFAULT NULL, headers jsonb DEFAULT NULL,
                            order_key text DEFAULT NULL, tags text[] DEFAULT '{}', index_keys text[] DEFAULT '{}',
                            producer_group text DEFAULT NULL, deliver_at timestamptz DEFAULT NULL,
                            traceparent text DEFAULT NULL, deliver_before timestamptz DEFAULT NULL) RETURNS uuid
    LANGUAGE sql VOLATILE
    RETURN outbox.send(topic, body::text, key, headers, order_key, tags, index_keys, producer_group, deliver_at, traceparent,
                       deliver_before);
COMMENT ON FUNCTION outbox.send(text, jsonb, text, jsonb, text, text[], text[], text, timestamptz, text, timestamptz) IS
    'Sends a JSON document in PostgreSQL''s spelling of it (jsonb keeps no spaces and no order of names); returns the message id.';
