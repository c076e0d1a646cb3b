-- Which version of the schema a database has.

-- name: exists
-- Whether the table of the revision is there.
SELECT to_regclass('outbox.schema_version') IS NOT NULL

-- name: revision
-- The revision that it names.
SELECT version_num FROM outbox.schema_version
