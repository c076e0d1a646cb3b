-- The keys of encrypted bodies, as operators list, destroy, renew and wrap them again.

-- name: of_subject
-- All keys of one subject, the oldest first; destroyed ones have no subject any more.
SELECT id, subject, master_id, created_at, retired_at, destroyed_at, destroyed_by
FROM outbox.subject_key
WHERE subject = %(subject)s
ORDER BY created_at, id

-- name: by_id
-- Some keys by their ids, destroyed ones too.
SELECT id, subject, master_id, created_at, retired_at, destroyed_at, destroyed_by
FROM outbox.subject_key
WHERE id = ANY (%(ids)s::uuid[])
ORDER BY created_at, id

-- name: latest
-- The keys that were made last, destroyed ones too.
SELECT id, subject, master_id, created_at, retired_at, destroyed_at, destroyed_by
FROM outbox.subject_key
ORDER BY created_at DESC, id
LIMIT %(limit)s

-- name: destroy
-- Destroys all keys of a subject.
SELECT k.id FROM outbox.destroy_keys(%(subject)s) k (id)

-- name: retire
-- Lets the next body of a subject get a new key; the old one goes on reading what it encrypted.
UPDATE outbox.subject_key SET retired_at = clock_timestamp()
WHERE subject = %(subject)s AND retired_at IS NULL AND destroyed_at IS NULL
RETURNING id

-- name: masters
-- How many keys each master key has wrapped.
SELECT master_id, count(*) AS keys FROM outbox.subject_key WHERE master_id IS NOT NULL GROUP BY master_id ORDER BY master_id

-- name: wrapped_by_another
-- A page of keys that another master key has wrapped.
SELECT id, wrapped, master_id
FROM outbox.subject_key
WHERE master_id IS NOT NULL AND master_id <> %(current)s AND (master_id, id) > (%(after_master)s, %(after_id)s)
ORDER BY master_id, id
LIMIT %(limit)s

-- name: rewrap
-- Replaces the wrapped bytes, unless the key was destroyed or wrapped again since they were read.
UPDATE outbox.subject_key SET wrapped = %(wrapped)s, master_id = %(current)s
WHERE id = %(id)s AND master_id = %(master_id)s AND wrapped = %(old)s
