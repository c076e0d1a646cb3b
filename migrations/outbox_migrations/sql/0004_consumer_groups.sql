-- Consumer groups that belong to a role. PostgreSQL itself hides the rows of such a group from consumers that are not members of
-- its role: they cannot be read, changed, deleted or locked, and a row that names the group cannot be inserted. So a foreign
-- consumer cannot have an inbox, a position, a parked body, a dead letter or a subscription of the group.

ALTER TABLE outbox.consumer_group ADD COLUMN role name;
COMMENT ON COLUMN outbox.consumer_group.role IS
    'only members of this role, and operators, see and change rows of the group; every consumer when null';

-- Whether the current user sees rows of all groups: operators do, and so do those who may take no message over (readers, relays):
-- what they may read is said by the privileges of columns. A privilege tells, not a name, as in outbox.is_operator. The user is
-- current_user, which PostgreSQL sets to the owner of an index while it runs a function of it; the role that acts is not.
CREATE FUNCTION outbox.sees_all_groups() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN pg_catalog.has_column_privilege('outbox.lane', 'retry_requested_at', 'UPDATE')
        OR NOT pg_catalog.has_table_privilege('outbox.inbox', 'INSERT');
COMMENT ON FUNCTION outbox.sees_all_groups() IS 'Whether the current user sees consumer groups that are bound to any role.';

-- Whether the current user sees rows of a group. It is made from outbox.consumer_group whenever a group is bound: asking the table
-- would be a sixth of what it costs to take a message over. PostgreSQL puts the expression in the place of the call, plans again
-- when it changes, and where no group is bound nothing is left of it.
CREATE FUNCTION outbox.sees_group(group_id integer) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE RETURN true;
COMMENT ON FUNCTION outbox.sees_group(integer) IS 'Whether the current user sees rows of this consumer group; made from its roles.';

-- Makes outbox.sees_group, as an expression of the same size however many groups are bound. A role that was dropped has no members:
-- its group is left to operators. One session at a time, which sees what the one before has bound.
CREATE FUNCTION outbox.make_sees_group() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    groups integer[];
    roles  text[];
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'a consumer group is bound in a transaction that is %', current_setting('transaction_isolation')
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'It may not see what another session has bound. Use: BEGIN ISOLATION LEVEL READ COMMITTED';
    END IF;
    LOCK TABLE outbox.inbox_partition_lock IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT array_agg(g.id ORDER BY g.id), array_agg(quote_ident(g.role::text) ORDER BY g.id) INTO groups, roles
    FROM outbox.consumer_group g WHERE g.role IS NOT NULL;
    EXECUTE 'CREATE OR REPLACE FUNCTION outbox.sees_group(group_id integer) RETURNS boolean '
        'LANGUAGE sql STABLE PARALLEL SAFE RETURN '
        || CASE WHEN groups IS NULL THEN 'true' ELSE
            format('group_id <> ALL (%1$L::integer[]) OR coalesce(pg_has_role(to_regrole('
                   '(%2$L::text[])[array_position(%1$L::integer[], group_id)])::oid, ''MEMBER''), false) '
                   'OR outbox.sees_all_groups()', groups, roles) END;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION outbox.make_sees_group() FROM PUBLIC;
CREATE TRIGGER group_is_bound_at_birth AFTER INSERT ON outbox.consumer_group FOR EACH ROW
    WHEN (NEW.role IS NOT NULL) EXECUTE FUNCTION outbox.make_sees_group();
CREATE TRIGGER group_is_bound AFTER UPDATE OF role ON outbox.consumer_group FOR EACH ROW
    WHEN (OLD.role IS DISTINCT FROM NEW.role) EXECUTE FUNCTION outbox.make_sees_group();
CREATE TRIGGER bound_group_is_gone AFTER DELETE ON outbox.consumer_group FOR EACH ROW
    WHEN (OLD.role IS NOT NULL) EXECUTE FUNCTION outbox.make_sees_group();
ALTER TABLE outbox.consumer_group ENABLE ALWAYS TRIGGER group_is_bound_at_birth, ENABLE ALWAYS TRIGGER group_is_bound,
    ENABLE ALWAYS TRIGGER bound_group_is_gone;

-- The role of a consumer group, also for those who do not see the group: the error that refuses them names it.
CREATE FUNCTION outbox.role_of_consumer_group(consumer_group text) RETURNS name
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT g.role FROM outbox.consumer_group g WHERE g.name = role_of_consumer_group.consumer_group;
END;

CREATE POLICY of_its_role ON outbox.consumer_group USING (outbox.sees_group(id));
ALTER TABLE outbox.consumer_group ENABLE ROW LEVEL SECURITY;
-- Rows of outbox.inbox are written and read through it only: consumers are granted no partition.
DO $$
DECLARE
    child text;
BEGIN
    FOREACH child IN ARRAY ARRAY['consumer_member', 'consumer_pause', 'inbox', 'inbox_position', 'inbox_held_key', 'inbox_parked',
                                 'inbox_replay', 'inbox_run'] LOOP
        EXECUTE pg_catalog.format('CREATE POLICY of_its_role ON outbox.%I USING (outbox.sees_group(group_id))', child);
        EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE ROW LEVEL SECURITY', child);
    END LOOP;
END $$;
