-- Why the current role must not upgrade this database, and in a second line what repairs it; NULL: it may. A schema that
-- was there keeps its owner, who can drop and replace all that is made in it. So all that is there is the upgrader's own.
WITH there AS (
    SELECT n.oid AS schema, n.nspowner AS owner, v.relowner AS version_owner, v.oid IS NOT NULL AS is_outbox,
           (SELECT m.oid FROM pg_roles m WHERE m.rolname = current_user) AS me
    FROM pg_namespace n
    LEFT JOIN pg_class v ON v.relnamespace = n.oid AND v.relname = 'schema_version' AND v.relkind = 'r'
        AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = v.oid AND a.attname = 'version_num')
    WHERE n.nspname = 'outbox'
), objects AS (
    -- pg_shdepend does not note what the role owns that initdb has made: 10.
    SELECT pg_describe_object(d.classid, d.objid, 0) AS name, coalesce(s.refobjid, 10::oid) AS owner
    FROM there t
    JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = t.schema AND d.deptype = 'n'
        AND d.classid <> 'pg_default_acl'::regclass
    LEFT JOIN pg_shdepend s ON s.classid = d.classid AND s.objid = d.objid AND s.objsubid = 0 AND s.deptype = 'o'
        AND s.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
), refusals (place, text) AS (
    SELECT 0, 'the script runs outside of a transaction, where its settings do not last'
              || E'\nrun all of it in one: psql -v ON_ERROR_STOP=1 --single-transaction'
    WHERE current_setting('search_path') <> 'pg_catalog, pg_temp'
    UNION ALL
    SELECT 1, format(E'database %I has the encoding %s; expected UTF8, in which keys, headers and names can be stored\n'
                     'make one that has it, and restore a dump of this one there: CREATE DATABASE ... TEMPLATE template0 ENCODING ''UTF8''',
                     current_database(), current_setting('server_encoding'))
    WHERE current_setting('server_encoding') <> 'UTF8'
    UNION ALL
    SELECT 2, format(E'schema outbox of database %I belongs to another program: it has no table schema_version of this one, and has %s\n'
                     'use another database, or rename that schema: ALTER SCHEMA outbox RENAME TO ...',
                     current_database(), (SELECT string_agg(o.name, ', ') FROM (SELECT name FROM objects ORDER BY name LIMIT 3) o))
    FROM there t WHERE NOT t.is_outbox AND EXISTS (SELECT FROM objects)
    UNION ALL
    SELECT 3, format(E'the outbox of database %I belongs to %I, as whom %I may not act\n'
                     'run it as the owner: PGOPTIONS=''-c role=%2$I'' outbox db upgrade',
                     current_database(), pg_get_userbyid(t.version_owner), current_user)
    FROM there t WHERE t.version_owner <> t.me
    UNION ALL
    SELECT 4, format(E'schema outbox of database %I was there and belongs to %I, who could drop all that %I makes in it\n'
                     'as a superuser: ALTER SCHEMA outbox OWNER TO %3$I',
                     current_database(), pg_get_userbyid(t.owner), current_user)
    FROM there t WHERE t.owner <> t.me
    UNION ALL
    SELECT 5, format(E'%s in database %I belong to others than %I\n'
                     'drop them, or give each to %3$I, as ALTER TABLE ... OWNER TO %3$I',
                     string_agg(o.name || ' of ' || pg_get_userbyid(o.owner), ', ' ORDER BY o.name), current_database(), current_user)
    FROM there t CROSS JOIN LATERAL (SELECT * FROM objects WHERE owner <> t.me ORDER BY name LIMIT 5) o
    HAVING count(*) > 0
    UNION ALL
    -- The first upgrade makes these roles, or finds those of another database of the cluster: as it makes them.
    SELECT 6, format(E'role %I was there, and may do more than the outbox grants it: it has %s\n'
                     'as a superuser: ALTER ROLE %1$I NOLOGIN NOSUPERUSER NOCREATEROLE NOCREATEDB NOREPLICATION NOBYPASSRLS',
                     r.rolname, concat_ws(', ', CASE WHEN r.rolcanlogin THEN 'LOGIN' END, CASE WHEN r.rolsuper THEN 'SUPERUSER' END,
                                          CASE WHEN r.rolcreaterole THEN 'CREATEROLE' END, CASE WHEN r.rolcreatedb THEN 'CREATEDB' END,
                                          CASE WHEN r.rolreplication THEN 'REPLICATION' END, CASE WHEN r.rolbypassrls THEN 'BYPASSRLS' END))
    FROM pg_roles r
    WHERE r.rolname IN ('outbox_producer', 'outbox_relay', 'outbox_checker', 'outbox_consumer', 'outbox_etl', 'outbox_reader',
                        'outbox_operator', 'outbox_trusted_producer')
        AND (r.rolcanlogin OR r.rolsuper OR r.rolcreaterole OR r.rolcreatedb OR r.rolreplication OR r.rolbypassrls)
        AND NOT EXISTS (SELECT FROM there WHERE is_outbox)
)
SELECT text FROM refusals ORDER BY place, text LIMIT 1
