-- What the system checks of Django ask; see outbox/adapters/django/checks.py.

-- name: exists
-- Whether the schema is there.
SELECT pg_catalog.to_regclass('outbox.schema_version') IS NOT NULL;

-- name: revision
-- Its revision, and the oldest one whose software works with it: NULL where it does not state that.
SELECT v.version_num, pg_catalog.to_jsonb(v) ->> 'oldest_software'::text FROM outbox.schema_version v;

-- name: rights
-- Whether the current user may write a message.
SELECT pg_catalog.has_column_privilege('outbox.message', 'topic', 'INSERT');

-- name: none
-- What the others return where there is no schema.
SELECT NULL::text, NULL::text;
