-- What the relay learns of the server's log.

-- name: positions
-- What polls ask. Refused where the privilege to execute them was revoked, and where they are not what PostgreSQL's are.
-- True of a log that is flushed behind where it is written: the flushed position is read first.
SELECT pg_current_wal_flush_lsn() <= pg_current_wal_insert_lsn()

-- name: written
-- Where the log ends, and up to where it is flushed. A commit moves the first and is seen then if it waits for nothing; else it
-- moves the second, and is seen then. Null where it waits for a standby: it is seen when nothing is written.
SELECT CASE WHEN current_setting('synchronous_standby_names') = ''
            THEN pg_current_wal_insert_lsn()::text || ' ' || pg_current_wal_flush_lsn() END

-- name: server
-- Which server this is, for relays of one process.
SELECT system_identifier || ' ' || pg_postmaster_start_time() FROM pg_control_system()

-- name: aurora
-- Aurora has this function, and no other server. It is in no list of functions: asking pg_proc does not find it.
SELECT pg_catalog.aurora_version()

-- name: elsewhere
-- Signs of services that keep the log elsewhere, or have copies of it that "synchronous_standby_names" does not show:
-- Amazon RDS (a Multi-AZ cluster cannot be distinguished from an instance), AlloyDB, Neon, PolarDB. And whether an operator wants
-- barriers: options='-c outbox.own_barriers=on' in the DSN of the relay, which every login may give.
SELECT concat_ws(', ',
    (SELECT string_agg('the role ' || rolname, ', ' ORDER BY rolname) FROM pg_catalog.pg_roles
     WHERE rolname IN ('rds_superuser', 'alloydbsuperuser', 'neon_superuser', 'polar_superuser')),
    (SELECT string_agg('the setting ' || name, ', ')
     FROM unnest(ARRAY['neon.tenant_id', 'neon.timeline_id', 'rds.extensions', 'rds.logical_replication']) name
     WHERE current_setting(name, true) IS NOT NULL),
    CASE WHEN coalesce(lower(current_setting('outbox.own_barriers', true)), '') NOT IN ('', 'off', 'false', 'no', '0') THEN 'the setting outbox.own_barriers' END)

-- name: has_synchronous_standbys
-- Whether commits wait for standbys: without names, or without senders, they return at once. When this session read its
-- settings, and whether that is so long ago that the checkpointer has read them, too: it is what lets commits wait.
SELECT current_setting('synchronous_standby_names') <> '' AND current_setting('max_wal_senders') <> '0',
       pg_conf_load_time(), clock_timestamp() - pg_conf_load_time() > make_interval(secs => %(settled)s)
