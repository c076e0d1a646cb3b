-- Which version of the schema a database has.

-- name: exists
-- Whether alembic's table of the outbox is there.
SELECT to_regclass('outbox.alembic_version') IS NOT NULL

-- name: revision
-- The revision that it names.
SELECT version_num FROM outbox.alembic_version
