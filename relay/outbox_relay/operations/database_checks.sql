-- What `outbox db check` asks.

-- name: server
-- Version, role in replication, and the settings that the outbox's promises rest on. The default of
-- synchronous_commit is what this user's sessions begin with, in this database.
SELECT current_setting('server_version_num')::integer AS version,
       pg_is_in_recovery() AS standby,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       c.reset_val AS synchronous_commit,
       c.source AS synchronous_commit_source,
       current_setting('default_transaction_read_only') AS read_only
FROM pg_settings c WHERE c.name = 'synchronous_commit'

-- name: missing_roles
-- The roles of the outbox that the cluster does not have.
SELECT wanted FROM unnest(%(roles)s::text[]) wanted
WHERE NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = wanted)
ORDER BY 1
