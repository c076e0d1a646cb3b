-- What `outbox db check` asks.

-- name: server
-- Version, role in replication, and the settings that the outbox's promises rest on. The default of
-- synchronous_commit is what this user's sessions begin with, in this database.
SELECT current_setting('server_version_num')::integer AS version,
       current_setting('server_encoding') AS encoding,
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

-- name: unusable_roles
-- The roles of the outbox that the schema's owner wants to grant to logins, and may not. Roles belong to the cluster: since
-- PostgreSQL 16 only who made them, for this database or another one, may grant them, and whom he or a superuser allows to.
WITH owner AS (
    SELECT o.oid, o.rolname FROM pg_roles o
    WHERE o.rolcreaterole AND NOT o.rolsuper
        AND o.oid = coalesce((SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'outbox'),
                             (SELECT m.oid FROM pg_roles m WHERE m.rolname = current_user))
)
SELECT r.rolname AS role, o.rolname AS owner FROM owner o JOIN pg_roles r ON r.rolname = ANY (%(roles)s)
WHERE current_setting('server_version_num')::integer >= 160000
    AND NOT pg_has_role(o.oid, r.oid, 'MEMBER WITH ADMIN OPTION')
ORDER BY 1

-- name: owner
-- Who owns the schema.
SELECT pg_get_userbyid(n.nspowner) FROM pg_namespace n WHERE n.nspname = 'outbox'

-- name: others_objects
-- What in the schema belongs to somebody else than the schema: its owner can replace and drop it. pg_shdepend does not note
-- what the role owns that initdb has made: 10. Without a name: who may add to the schema.
SELECT pg_describe_object(d.classid, d.objid, 0) AS name, pg_get_userbyid(coalesce(s.refobjid, 10::oid)) AS owner
FROM pg_namespace n
JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid AND d.deptype = 'n'
    AND d.classid <> 'pg_default_acl'::regclass
LEFT JOIN pg_shdepend s ON s.classid = d.classid AND s.objid = d.objid AND s.objsubid = 0 AND s.deptype = 'o'
    AND s.dbid = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
WHERE n.nspname = 'outbox' AND coalesce(s.refobjid, 10::oid) <> n.nspowner
UNION ALL
SELECT NULL, CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END
FROM pg_namespace n CROSS JOIN aclexplode(n.nspacl) a
WHERE n.nspname = 'outbox' AND a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner
ORDER BY 1, 2

-- name: strangers_functions
-- Functions and operators that objects of the schema call and that belong neither to its owner nor to a superuser. A schema's
-- objects are what depends on it, and what is a part of that: defaults, constraints, indexes, triggers, rules.
WITH RECURSIVE ours AS (
    SELECT d.classid, d.objid FROM pg_depend d
    WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = to_regnamespace('outbox')
    UNION
    SELECT d.classid, d.objid FROM ours o
    JOIN pg_depend d ON d.refclassid = o.classid AND d.refobjid = o.objid AND d.deptype IN ('a', 'i', 'P', 'S')
), called AS (
    SELECT o.classid, o.objid, d.refclassid, d.refobjid, coalesce(p.proowner, q.oprowner) AS owner
    FROM ours o
    JOIN pg_depend d ON d.classid = o.classid AND d.objid = o.objid
    LEFT JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
    LEFT JOIN pg_operator q ON d.refclassid = 'pg_operator'::regclass AND q.oid = d.refobjid
    WHERE coalesce(p.pronamespace, q.oprnamespace) NOT IN (to_regnamespace('outbox'), 'pg_catalog'::regnamespace)
)
SELECT DISTINCT pg_describe_object(c.classid, c.objid, 0) AS name, i.type || ' ' || i.identity AS called, r.rolname AS owner
FROM called c JOIN pg_roles r ON r.oid = c.owner CROSS JOIN LATERAL pg_identify_object(c.refclassid, c.refobjid, 0) i
WHERE NOT r.rolsuper AND r.oid <> (SELECT n.nspowner FROM pg_namespace n WHERE n.nspname = 'outbox')
ORDER BY 1, 2

-- name: hidden_rows
-- Tables with row level security that the outbox has not set: relay and checkers would pass over the rows that it hides.
SELECT c.oid::regclass::text FROM pg_class c
WHERE c.relnamespace = to_regnamespace('outbox') AND (c.relrowsecurity OR c.relforcerowsecurity)
    AND (NOT EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname LIKE 'of\_its\_%%')
         OR EXISTS (SELECT FROM pg_policy p WHERE p.polrelid = c.oid AND p.polname NOT LIKE 'of\_its\_%%'))
ORDER BY 1
