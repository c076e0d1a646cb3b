-- Which version of the schema a database has.

-- name: exists
-- Whether the table of the revision is there, and not one of another program by this name.
SELECT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass('outbox.schema_version') AND a.attname = 'version_num')

-- name: another_program
-- Some of what is in a schema of this name without an outbox; NULL: nothing is, or there is no such schema.
SELECT string_agg(o.name, ', ')
FROM (SELECT pg_describe_object(d.classid, d.objid, 0) AS name FROM pg_depend d
      WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = to_regnamespace('outbox') AND d.deptype = 'n'
          AND d.classid <> 'pg_default_acl'::regclass
      ORDER BY 1 LIMIT 3) o

-- name: revision
-- The revision that it names, and the oldest one whose software works with it: NULL where it does not state that.
SELECT v.version_num, to_jsonb(v) ->> 'oldest_software' FROM outbox.schema_version v
