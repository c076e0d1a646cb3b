-- An outbox that is there is upgraded with its owner's role by every login that may act as it, a superuser for one: what is
-- new belongs to whom the rest belongs, and nothing of the owner's runs with more rights than his. A table without a
-- revision is no outbox: whoever made it is not trusted by that.
DO $role$
DECLARE
    owner  name;
    is_one boolean;
BEGIN
    SELECT pg_get_userbyid(c.relowner) INTO owner FROM pg_class c
    WHERE c.oid = to_regclass('outbox.schema_version') AND c.relkind = 'r' AND pg_get_userbyid(c.relowner) <> current_user
        AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'version_num')
        AND pg_has_role(c.relowner, CASE WHEN current_setting('server_version_num')::integer >= 160000 THEN 'SET' ELSE 'MEMBER' END);
    IF owner IS NOT NULL THEN
        EXECUTE 'SELECT EXISTS (SELECT FROM outbox.schema_version)' INTO is_one;
        IF is_one THEN
            EXECUTE format('SET LOCAL ROLE %I', owner);
        END IF;
    END IF;
END $role$;
