-- Which version of the schema a database has.

-- name: exists
-- Whether the table of the revision is there.
SELECT to_regclass('outbox.schema_version') IS NOT NULL

-- name: revision
-- The revision that it names, and the oldest one whose software works with it: NULL where it does not state that.
SELECT v.version_num, to_jsonb(v) ->> 'oldest_software' FROM outbox.schema_version v
