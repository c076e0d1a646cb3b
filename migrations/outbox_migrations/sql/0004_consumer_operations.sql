-- What operators and members of consumer groups state of each other, beside positions.

ALTER TABLE outbox.consumer_member ADD COLUMN full_keys integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN outbox.consumer_member.full_keys IS
    'held keys whose later messages wait in Kafka, because as many wait here as may';

-- Pauses of a consumer group, or of a topic in it. Rows stay when a pause has ended: they are the audit of who paused what, and why.
CREATE TABLE outbox.consumer_pause (
    group_id   integer     NOT NULL,
    topic      text        NOT NULL,
    reason     text        NOT NULL CHECK (pg_catalog.length(reason) OPERATOR(pg_catalog.>=) 1
                                           AND pg_catalog.length(reason) OPERATOR(pg_catalog.<=) 500),
    paused_at  timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    paused_by  text        NOT NULL DEFAULT outbox.actor(),
    resumed_at timestamptz,
    resumed_by text        CHECK ((resumed_at IS NULL) OPERATOR(pg_catalog.=) (resumed_by IS NULL))
);
CREATE UNIQUE INDEX consumer_pause_once ON outbox.consumer_pause (group_id, topic) WHERE resumed_at IS NULL;
COMMENT ON TABLE outbox.consumer_pause IS 'Pauses of consumer groups, and of topics in them; also those that have ended.';
COMMENT ON COLUMN outbox.consumer_pause.topic IS 'a topic; empty: all of the group';

-- Groups that were deleted: the audit, and what refuses a member that stood still meanwhile. No other group gets their numbers.
CREATE TABLE outbox.deleted_consumer_group (
    id         integer     PRIMARY KEY,
    name       text        NOT NULL,
    reason     text        NOT NULL CHECK (pg_catalog.length(reason) OPERATOR(pg_catalog.>=) 1
                                           AND pg_catalog.length(reason) OPERATOR(pg_catalog.<=) 500),
    deleted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    deleted_by text        NOT NULL DEFAULT outbox.actor()
);
COMMENT ON TABLE outbox.deleted_consumer_group IS 'Consumer groups that an operator deleted.';

-- Deletes a group with all that it has but its rows of outbox.inbox, of which there may be many: see forget_deleted_group. Returns
-- its number; null if there is no such group. Refused while a member runs: members register under the lock of the group's row.
CREATE FUNCTION outbox.delete_consumer_group(consumer_group text, reason text) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    number  integer;
    running text;
BEGIN
    SELECT g.id INTO number FROM outbox.consumer_group g WHERE g.name = consumer_group FOR UPDATE;
    IF number IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT string_agg(m.member, ', ' ORDER BY m.member) INTO running FROM outbox.consumer_member m
    WHERE m.group_id = number AND m.seen_at > clock_timestamp() - interval '60 seconds';
    IF running IS NOT NULL THEN
        RAISE EXCEPTION 'members of group % run, or were seen within a minute: %', consumer_group, running
            USING ERRCODE = 'object_in_use', HINT = 'Stop them first. Nothing was changed.';
    END IF;
    INSERT INTO outbox.deleted_consumer_group (id, name, reason) VALUES (number, consumer_group, reason);
    DELETE FROM outbox.consumer_member WHERE group_id = number;
    DELETE FROM outbox.consumer_pause WHERE group_id = number;
    DELETE FROM outbox.inbox_replay WHERE group_id = number;
    DELETE FROM outbox.inbox_run WHERE group_id = number;
    DELETE FROM outbox.inbox_parked WHERE group_id = number;
    DELETE FROM outbox.inbox_held_key WHERE group_id = number;
    DELETE FROM outbox.inbox_position WHERE group_id = number;
    DELETE FROM outbox.inbox_floor WHERE group_id = number;
    DELETE FROM outbox.consumer_group WHERE id = number;
    RETURN number;
END $$;

-- Deletes up to so many rows of outbox.inbox of a group that was deleted; returns how many. By the day, because a partition finds
-- them by its index and deletes them by their places.
CREATE FUNCTION outbox.forget_deleted_group(number integer, most integer) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '5s' AS $$
DECLARE
    child text;
    gone  bigint;
    found bigint := 0;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.deleted_consumer_group d WHERE d.id = number) THEN
        RAISE EXCEPTION 'no consumer group of number % was deleted', number USING ERRCODE = 'no_data_found';
    END IF;
    FOR child IN
        SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE i.inhparent = 'outbox.inbox'::regclass ORDER BY c.relname
    LOOP
        EXECUTE format('DELETE FROM outbox.%1$I WHERE ctid = ANY (ARRAY(
                            SELECT c.ctid FROM outbox.%1$I c WHERE c.group_id = $1 LIMIT $2))', child)
            USING number, most - found;
        GET DIAGNOSTICS gone = ROW_COUNT;
        found := found + gone;
        EXIT WHEN found >= most;
    END LOOP;
    RETURN found;
END $$;
REVOKE ALL ON FUNCTION outbox.delete_consumer_group(text, text), outbox.forget_deleted_group(integer, integer) FROM PUBLIC;

DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_consumer', 'outbox_operator', 'outbox_reader'] LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) wanted::pg_catalog.name
        );
        EXECUTE pg_catalog.format('GRANT SELECT ON outbox.consumer_pause, outbox.deleted_consumer_group TO %I', wanted);
        CONTINUE WHEN wanted OPERATOR(pg_catalog.=) 'outbox_reader';
        EXECUTE pg_catalog.format('GRANT INSERT (group_id, topic, reason), UPDATE (resumed_at, resumed_by)
                                   ON outbox.consumer_pause TO %I', wanted);
    END LOOP;
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) 'outbox_operator'::pg_catalog.name) THEN
        GRANT EXECUTE ON FUNCTION outbox.delete_consumer_group(text, text), outbox.forget_deleted_group(integer, integer)
            TO outbox_operator;
    END IF;
END $$;
