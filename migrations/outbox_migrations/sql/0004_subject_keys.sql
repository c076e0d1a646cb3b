-- Retires a key: from then on new bodies of its subject get another one, and this one reads the old ones. A producer that finds
-- a current key that does not open calls it, so that nobody stops sends about a subject by writing a key. It may not revive
-- one: therefore a function, and no right to update the column.
CREATE FUNCTION outbox.retire_key(key_id uuid) RETURNS void
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.subject_key k SET retired_at = pg_catalog.clock_timestamp()
    WHERE k.id OPERATOR(pg_catalog.=) key_id AND k.retired_at IS NULL AND k.destroyed_at IS NULL;
END;
COMMENT ON FUNCTION outbox.retire_key(uuid) IS 'new bodies of the subject of this key get another key';
