-- Data keys that encrypt bodies, one per subject (such as a customer) at a time, each wrapped by a master key that the
-- database does not have. A body names its key by id. Destroying a key erases the bodies in all places: the row stays
-- without its bytes and without the name of the subject, so that readers know an erased body from a wrong database.
CREATE TABLE outbox.subject_key (
    id           uuid PRIMARY KEY,
    subject      text CHECK (length(subject) BETWEEN 1 AND 255),
    wrapped      bytea CHECK (octet_length(wrapped) BETWEEN 1 AND 65536),
    master_id    text CHECK (length(master_id) BETWEEN 1 AND 255),
    created_at   timestamptz NOT NULL DEFAULT now(),
    retired_at   timestamptz,
    destroyed_at timestamptz,
    destroyed_by text,
    CHECK (num_nulls(subject, wrapped, master_id) = CASE WHEN destroyed_at IS NULL THEN 0 ELSE 3 END),
    CHECK ((destroyed_at IS NULL) = (destroyed_by IS NULL))
);
COMMENT ON COLUMN outbox.subject_key.retired_at IS 'from then on new bodies of the subject get another key; this one reads the old ones';
CREATE UNIQUE INDEX subject_key_current ON outbox.subject_key (subject) WHERE retired_at IS NULL AND destroyed_at IS NULL;
CREATE INDEX subject_key_subject ON outbox.subject_key (subject) WHERE subject IS NOT NULL;
-- Few rows have another master key than the current one, except while all of them are wrapped again.
CREATE INDEX subject_key_master ON outbox.subject_key (master_id, id) WHERE master_id IS NOT NULL;

-- Destroys all keys of a subject, in the caller's transaction; returns their ids. For applications in any language, and for
-- `outbox key destroy`. Calling it again destroys what was made meanwhile, and nothing twice.
CREATE FUNCTION outbox.destroy_keys(subject_ text) RETURNS SETOF uuid
    LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.subject_key k
    SET subject = NULL, wrapped = NULL, master_id = NULL, destroyed_at = clock_timestamp(), destroyed_by = session_user
    WHERE k.subject = subject_
    RETURNING k.id;
END;
COMMENT ON FUNCTION outbox.destroy_keys(text) IS 'erases all bodies of a subject by destroying its keys';
