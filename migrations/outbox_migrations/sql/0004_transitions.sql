-- A transition is made by a role that may make it, whoever PostgreSQL acts for.
--
-- make_transition() has the owner's rights, and asks the acting role: the login, or the role of SET ROLE. Code of a stranger can
-- run while somebody else acts: index expressions in ANALYZE and autovacuum, triggers of a table that references another one, functions
-- with their owner's rights. There current_user is the stranger, which a trigger with the caller's rights sees. So a transition needs
-- the permission of both where they differ. A function of a host with its owner's rights (SECURITY DEFINER) decides if its owner may
-- decide, and whoever calls it.

-- Refuses a current user who may not make the transition. Privileges are asked of current_user as outbox.is_operator(), is_checker() and
-- may_act_for() ask them of the acting role; a superuser and the owner of the outbox have all of them.
CREATE FUNCTION outbox.require_current_user(message_id uuid, from_state text, to_state text, producer_group text) RETURNS void
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    bound_to name;
    wanted   name := 'outbox_operator';
BEGIN
    IF has_column_privilege(current_user, 'outbox.lane', 'retry_requested_at', 'UPDATE') THEN  -- an operator
        RETURN;
    ELSIF NOT ARRAY[from_state, to_state] && '{DEAD,SKIPPED}' THEN
        IF has_table_privilege(current_user, 'outbox.pending_check', 'UPDATE') THEN  -- a checker
            RETURN;
        ELSIF NOT 'EXHAUSTED' IN (from_state, to_state) THEN
            SELECT g.role INTO bound_to FROM outbox.producer_group g WHERE g.name = require_current_user.producer_group;
            IF bound_to IS NULL OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = bound_to
                                           AND pg_has_role(current_user, r.oid, 'MEMBER')) THEN
                RETURN;
            END IF;
            wanted := bound_to;
        END IF;
    END IF;
    RAISE EXCEPTION 'message % may not be changed by code of %, while % acts', message_id, quote_ident(current_user),
            quote_ident(outbox.acting_role())
        USING ERRCODE = 'insufficient_privilege',
              HINT = format('A function with its owner''s rights needs the permission of its owner, too: GRANT %I TO %I, or make it '
                            'SECURITY INVOKER.', wanted, current_user);
END $$;

-- With the caller's rights, and without SET search_path, which every decision would pay for; see outbox.admit_message().
CREATE FUNCTION outbox.check_caller() RETURNS trigger
    LANGUAGE plpgsql AS $$
BEGIN
    IF current_user OPERATOR(pg_catalog.<>) outbox.acting_role() THEN
        PERFORM outbox.require_current_user(OLD.message_id, OLD.state, NEW.state, OLD.producer_group);
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER message_caller BEFORE UPDATE OF state, remark ON outbox.message FOR EACH ROW
    EXECUTE FUNCTION outbox.check_caller();
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_caller;
