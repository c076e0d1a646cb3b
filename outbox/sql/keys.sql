-- Data keys of subjects, as the codec `outbox.codecs.encryption` reads and makes them.

-- name: current
-- The key that encrypts new bodies of a subject.
SELECT id, wrapped, master_id
FROM outbox.subject_key
WHERE subject = $1 AND retired_at IS NULL AND destroyed_at IS NULL;

-- name: add
-- A new key, unless the subject has one by now. Another transaction that adds one and has not ended is waited for.
INSERT INTO outbox.subject_key (id, subject, wrapped, master_id)
VALUES ($1, $2, $3, $4)
ON CONFLICT (subject) WHERE retired_at IS NULL AND destroyed_at IS NULL DO NOTHING
RETURNING id;

-- name: retire
-- A current key that does not open encrypts no more; the next one is made by "add".
SELECT outbox.retire_key($1::uuid);

-- name: find
-- The key of a body. A destroyed one has no subject and no bytes, and says when it was destroyed.
SELECT subject, wrapped, master_id, pg_catalog.to_char(destroyed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
FROM outbox.subject_key
WHERE id = $1;
