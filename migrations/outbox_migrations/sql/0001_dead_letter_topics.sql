-- A copy of each dead letter in a topic of its group, where the group asks for one. A trigger at the end of the transaction
-- sends it: a message is dead while a listener retries it, and whether it stays dead is known at the commit only. So the row
-- and its copy are one transaction on every path, also where a listener has committed by itself. The trigger acts with the
-- rights of the consumer, which needs outbox_producer too: a consumer must not send to topics that it may not write.

-- The text of bytes in UTF-8; null for other bytes.
CREATE FUNCTION outbox.utf8_or_null(bytes bytea) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8');
EXCEPTION
    WHEN character_not_in_repertoire OR untranslatable_character THEN RETURN null;
END $$;

-- Headers without the attributes of a CloudEvent if they are not those of a valid one; never null.
CREATE FUNCTION outbox.without_invalid_event(headers jsonb) RETURNS jsonb
    LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN outbox.cloudevent_fault(headers) IS NULL THEN coalesce(headers, '{}')
                ELSE headers - (SELECT array_agg(n) FROM jsonb_object_keys(headers) n WHERE starts_with(n, 'ce_')) END;
END;

-- The headers of a copy: those of the dead letter that a message of the outbox may have, the first of each name, and
-- `dlq-...` with where it came from and why it is dead. The attributes of a CloudEvent are left out if it is not a valid one.
CREATE FUNCTION outbox.dead_letter_headers(letter outbox.inbox_parked, consumer_group text) RETURNS jsonb
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

-- Sends the copy of a message that is dead at the end of its transaction, once in its life: a redrive that fails again sends
-- no second one. A copy that cannot be sent must not keep the message from being parked: the row then has the reason.
-- Deadlocks, and a server that has no room or goes down, are no reasons: the whole transaction is tried again.
CREATE FUNCTION outbox.copy_dead_letter() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    letter outbox.inbox_parked;
    target record;
BEGIN
    SELECT g.name, g.dead_letter_topic AS topic INTO target
    FROM outbox.consumer_group g WHERE g.id = NEW.group_id AND g.dead_letter_topic IS NOT NULL;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    UPDATE outbox.inbox_parked p SET is_copied = true
    WHERE p.id = NEW.id AND p.state = 'dead' AND NOT p.is_copied
    RETURNING p.* INTO letter;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    BEGIN
        INSERT INTO outbox.message (topic, key, body, headers)
        VALUES (target.topic, letter.key, letter.body, outbox.dead_letter_headers(letter, target.name));
    EXCEPTION WHEN OTHERS THEN
        IF left(SQLSTATE, 2) IN ('40', '53', '55', '57', '58', 'XX') THEN
            RAISE;
        END IF;
        UPDATE outbox.inbox_parked p SET copy_error = SQLERRM WHERE p.id = letter.id;
        RAISE WARNING 'dead letter % could not be sent to %: %', letter.id, target.topic, SQLERRM;
    END;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER copy_dead_letter AFTER INSERT OR UPDATE OF state ON outbox.inbox_parked
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.state = 'dead' AND NOT NEW.is_copied) EXECUTE FUNCTION outbox.copy_dead_letter();
