-- The table of messages guards itself: how its state changes. What a row may hold and how it is born is guarded in
-- 0001_admission.sql. No writer, in whatever language, can write nonsense, and the audit is written with the deed.

-- The transitions of outbox.transition as an expression, made from the table: asking the table itself was a third of what
-- a decision cost, and one list of texts is started faster than a comparison for each transition. A migration that adds
-- a transition makes this function again.
DO $$ BEGIN
    EXECUTE (
        SELECT format('CREATE FUNCTION outbox.is_transition(from_state text, to_state text) RETURNS boolean
                       LANGUAGE sql IMMUTABLE PARALLEL SAFE
                       RETURN from_state || '' '' || to_state = ANY (%L::text[])',
                      array_agg(t.from_state || ' ' || t.to_state))
        FROM outbox.transition t WHERE t.from_state IS NOT NULL
    );
END $$;

-- Who may do what. A privilege tells, not a name: a superuser and the schema's owner have all of them, and a site may
-- grant them to roles of its own. Operators (and relays) may ask a lane to be tried again; checkers note their checks.
CREATE FUNCTION outbox.is_operator() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN has_column_privilege(outbox.acting_role(), 'outbox.lane', 'retry_requested_at', 'UPDATE');
CREATE FUNCTION outbox.is_checker() RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN has_table_privilege(outbox.acting_role(), 'outbox.pending_check', 'UPDATE');

-- Whether the acting role may decide and cancel messages of a producer group: everybody, unless the group is bound to a
-- role; then its members, checkers and operators. A group bound to a role that was dropped is left to the last two.
CREATE FUNCTION outbox.may_act_for(producer_group text) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN coalesce((SELECT g.role IS NULL
                         OR EXISTS (SELECT FROM pg_roles r WHERE r.rolname = g.role
                                    AND pg_has_role(outbox.acting_role(), r.oid, 'MEMBER'))
                         OR outbox.is_checker() OR outbox.is_operator()
                     FROM outbox.producer_group g WHERE g.name = may_act_for.producer_group), true);
COMMENT ON FUNCTION outbox.may_act_for(text) IS 'Whether the acting role may decide and cancel messages of this group.';

-- Refuses, by name, who may not make a transition.
CREATE FUNCTION outbox.require_permission(message_id uuid, from_state text, to_state text, producer_group text)
    RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF ('DEAD' IN (from_state, to_state) OR to_state = 'SKIPPED') AND NOT outbox.is_operator() THEN
        RAISE EXCEPTION 'message % may become or cease to be %, by operators only', message_id,
                CASE WHEN 'DEAD' IN (from_state, to_state) THEN 'DEAD' ELSE 'SKIPPED' END
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('%I acts; grant it outbox_operator, or let an operator do it.', outbox.acting_role());
    ELSIF 'EXHAUSTED' IN (from_state, to_state) AND NOT (outbox.is_checker() OR outbox.is_operator()) THEN
        RAISE EXCEPTION 'message % may become or cease to be EXHAUSTED by checkers and by operators only', message_id
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('%I acts; grant it outbox_operator, or let an operator do it.', outbox.acting_role());
    ELSIF NOT outbox.may_act_for(producer_group) THEN
        RAISE EXCEPTION 'message % is of producer group %, whose messages % may not decide or cancel', message_id,
                quote_literal(producer_group), quote_ident(outbox.acting_role())
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('The group is bound to the role %I; see: outbox group show %L',
                                (SELECT g.role FROM outbox.producer_group g
                                 WHERE g.name = require_permission.producer_group), producer_group);
    END IF;
END $$;

-- Lets a message leave its lane, to DEAD; refuses if it is published, or may be in Kafka, or on its way there at this
-- moment. Only two things prove that it is not: it waits (its row in outbox.waiting goes now, as for a cancellation), or
-- its lane is stopped exactly at it, without doubt, and is not being tried again. The second is read under the lane's
-- row lock, which is kept until this transaction ends; the relay announces a retry, in the same row and committed, before
-- it reads the lane:
--   announced first: this finds retrying_at set, and refuses.
--   locked first: the relay finds the row locked and leaves the lane stopped (it waits for nobody). When it tries
--     again it reads with a snapshot that sees the message DEAD.
--   An earlier acknowledgement was lost, with a producer, with a relay or with the partition's broker: the stop states that
--     it is in doubt whether Kafka has the message, and it does not become DEAD. The way out is "to_skipped": an operator
--     gives it up, knowing that it may be in Kafka, and that is what the audit then shows (COMMITTED to SKIPPED). It is for
--     messages in doubt only: what certainly is not in Kafka becomes DEAD first.
--   Another server than this one took the lane (a standby was promoted, a backup restored): the stop is what was replicated
--     or saved of it, and the relay may have gone on. It is refused until a relay has taken the lanes here.
--   The relay dies after its announcement: retrying_at stays, and so the refusal, until a relay has taken the lanes and
--     recorded how far they are published.
-- A message of a parked key waits, and is published by the relay when somebody asks for that: under the key's row lock
-- this finds "draining_at" set, and refuses, or keeps the lock until this transaction ends, and the relay leaves the key as
-- it is until then. Once the head is gone, the messages behind it are published. On a server that took over from another
-- one it is refused until a relay has taken the lane here. A message that joins a key while this runs keeps its row.
-- Under REPEATABLE READ a lane that changed since the snapshot is a serialization failure. Everybody is bound by this:
-- who knows by other means that a message cannot be published stops its lane at it, in the same transaction.
CREATE FUNCTION outbox.leave_lane(id bigint, message_id uuid, lane smallint, pos bigint, to_skipped boolean) RETURNS void
    LANGUAGE plpgsql AS $$
DECLARE
    after     text := CASE WHEN to_skipped THEN 'SKIPPED' ELSE 'DEAD' END;
    may_leave boolean := false;
    here      outbox.lane%ROWTYPE;
    waits     outbox.waiting%ROWTYPE;
    found_at  text;
BEGIN
    SELECT w.* INTO waits FROM outbox.waiting w WHERE w.id = leave_lane.id;
    IF waits.parked IS NOT NULL THEN
        IF EXISTS (SELECT FROM outbox.lane l WHERE l.lane = leave_lane.lane
                   AND l.timeline <> ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer) THEN
            RAISE EXCEPTION 'message % cannot become % now: this server took over from another one, whose relay may have published it',
                    message_id, after
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_retried',
                      HINT = 'Start a relay; it records that: outbox relay run';
        END IF;
        UPDATE outbox.parked_key k
        SET requested_at = CASE WHEN k.head = leave_lane.id THEN clock_timestamp() ELSE k.requested_at END,
            requested_by = CASE WHEN k.head = leave_lane.id THEN outbox.actor() ELSE k.requested_by END
        WHERE k.number = waits.parked AND k.draining_at IS NULL;
        IF NOT FOUND THEN
            IF EXISTS (SELECT FROM outbox.lane l JOIN outbox.lease e ON e.epoch = l.epoch
                       WHERE l.lane = leave_lane.lane AND e.leased_until > clock_timestamp()) THEN
                RAISE EXCEPTION 'message % cannot become % now: the relay is trying its key again; repeat in a few seconds',
                        message_id, after
                    USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_retried';
            END IF;
            RAISE EXCEPTION 'message % cannot become % now: the relay that was trying its key again has ended, and has not recorded whether it was published',
                    message_id, after
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_retried',
                      HINT = 'Start a relay; it records that: outbox relay run';
        END IF;
        DELETE FROM outbox.waiting w WHERE w.id = leave_lane.id AND w.in_doubt = to_skipped;
        may_leave := FOUND;
    ELSE  -- delayed, or expired: no relay publishes it while it waits, and one that expired may have been published before
        DELETE FROM outbox.waiting w WHERE w.id = leave_lane.id AND w.parked IS NULL AND w.in_doubt = to_skipped;
        may_leave := FOUND;
    END IF;
    IF NOT may_leave AND waits.parked IS NULL THEN
        -- The relay then tries the lane again within about a second.
        UPDATE outbox.lane l SET retry_requested_at = clock_timestamp()
        WHERE l.lane = leave_lane.lane AND l.stopped_message = leave_lane.message_id AND l.retrying_at IS NULL
            AND l.stopped_in_doubt = to_skipped
            AND coalesce(l.timeline = ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::integer, true);
        may_leave := FOUND;
    END IF;
    SELECT format('%s/%s', b.partitions[array_position(b.positions, pos)], b.offsets[array_position(b.positions, pos)])
    INTO found_at FROM outbox.publication b
    WHERE int8range(b.lo, b.hi, '[]') @> pos AND b.lo <= pos AND b.hi >= pos AND b.positions @> ARRAY[pos]
    ORDER BY b.published_at LIMIT 1;
    IF found_at IS NOT NULL THEN
        RAISE EXCEPTION 'message % cannot become %: it is published at %', message_id, after, found_at
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_published',
                  HINT = 'What is in Kafka stays there; send another message that corrects it.';
    ELSIF may_leave THEN
        RETURN;
    ELSIF (waits.parked IS NOT NULL OR waits.reason = 'expired') AND to_skipped THEN
        RAISE EXCEPTION 'message % cannot become SKIPPED: it is certain that Kafka does not have it, so it becomes DEAD first',
                message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_skipped_is_in_doubt',
                  HINT = format('outbox message skip %s --reason TEXT', message_id);
    ELSIF waits.reason = 'expired' THEN
        RAISE EXCEPTION 'message % cannot become DEAD: it has expired, and may be in Kafka from before, because an earlier acknowledgement was lost',
                message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_in_doubt',
                  HINT = format('Give it up, whether Kafka has it or not: outbox message skip %s --may-be-published --reason TEXT',
                                message_id);
    ELSIF waits.parked IS NOT NULL THEN
        RAISE EXCEPTION 'message % cannot become DEAD: it may be in Kafka already, because an earlier acknowledgement was lost',
                message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_in_doubt',
                  HINT = format('Repair the cause, and publish it: outbox message retry %s --reason TEXT; or give it up, whether '
                                'Kafka has it or not: outbox message skip %s --may-be-published --reason TEXT',
                                message_id, message_id);
    END IF;
    SELECT l.* INTO here FROM outbox.lane l WHERE l.lane = leave_lane.lane;
    IF here.stopped_error IS NULL THEN
        RAISE EXCEPTION 'message % cannot become %: lane % is not stopped at it, so the relay may be publishing it now',
                message_id, after, lane
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_stopped_its_lane',
                  HINT = 'Only what a lane has stopped at, or what waits for its time, can be set aside; see: outbox lane ls';
    ELSIF here.stopped_message IS NULL THEN
        RAISE EXCEPTION 'message % cannot become %: lane % waits for a partition that acknowledges nothing, so it may be in Kafka already',
                message_id, after, lane
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_stopped_its_lane',
                  HINT = here.stopped_error;
    ELSIF here.stopped_message <> message_id THEN
        RAISE EXCEPTION 'message % cannot become %: it is not what lane % stopped at; that is message %',
                message_id, after, lane, here.stopped_message
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_stopped_its_lane',
                  HINT = format('outbox message %s %s --reason TEXT',
                                CASE WHEN here.stopped_in_doubt THEN 'skip --may-be-published' ELSE 'dead' END,
                                here.stopped_message);
    ELSIF here.stopped_in_doubt AND NOT to_skipped THEN
        RAISE EXCEPTION 'message % cannot become DEAD: it may be in Kafka already, because an earlier acknowledgement was lost',
                message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_in_doubt',
                  HINT = format('Repair the cause, and it is published: outbox lane retry %s; or give it up, whether Kafka '
                                'has it or not: outbox message skip %s --may-be-published --reason TEXT', lane, message_id);
    ELSIF to_skipped AND NOT here.stopped_in_doubt THEN
        RAISE EXCEPTION 'message % cannot become SKIPPED: it is certain that Kafka does not have it, so it becomes DEAD first',
                message_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_skipped_is_in_doubt',
                  HINT = format('outbox message skip %s --reason TEXT', message_id);
    ELSIF EXISTS (SELECT FROM outbox.lease e WHERE e.epoch = here.epoch AND e.leased_until > clock_timestamp()) THEN
        RAISE EXCEPTION 'message % cannot become % now: lane % is trying it again; repeat in a few seconds',
                message_id, after, lane
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_retried';
    ELSE
        RAISE EXCEPTION 'message % cannot become % now: the relay that was trying it again has ended, and has not recorded whether it was published',
                message_id, after
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_dead_is_not_retried',
                  HINT = 'Start a relay; it records that: outbox relay run';
    END IF;
END $$;

-- One statement decides, in any language:
--   UPDATE outbox.message SET state = 'COMMITTED', remark = ... WHERE id = ... AND state = 'UNKNOWN'
-- The row takes its xid and then its position at that moment, and the audit row is written with it. Two that race
-- meet at the row's lock; the second then finds it decided and updates nothing.
-- A cancellation races with the relay, which releases a delayed message when it is due: both lock the message, then
-- delete its row in outbox.waiting. Who comes second finds none: the relay goes on, the cancellation is refused.
-- A remark belongs to a state: it changes with it, or while a half message is undecided (why it still is).
CREATE FUNCTION outbox.make_transition() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    group_role name;
BEGIN
    IF OLD.state = NEW.state THEN
        IF OLD.remark IS NOT DISTINCT FROM NEW.remark THEN
            RETURN NEW;
        ELSIF OLD.state <> 'UNKNOWN' THEN
            RAISE EXCEPTION 'message % is %: its remark changes only together with its state', OLD.message_id, OLD.state
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_remark_is_of_its_state';
        END IF;
        PERFORM outbox.require_permission(OLD.message_id, OLD.state, NEW.state, OLD.producer_group);
        RETURN NEW;
    ELSIF NOT outbox.is_transition(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'message % is % and cannot become %', OLD.message_id, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'message_transition',
                  HINT = 'The allowed transitions are in outbox.transition.';
    END IF;
    -- What a decision pays: whether the group is bound at all. Transitions of operators are looked at closely.
    SELECT g.role INTO group_role FROM outbox.producer_group g WHERE g.name = OLD.producer_group;
    IF group_role IS NOT NULL OR NEW.state IN ('DEAD', 'SKIPPED', 'EXHAUSTED') OR OLD.state IN ('DEAD', 'EXHAUSTED') THEN
        PERFORM outbox.require_permission(OLD.message_id, OLD.state, NEW.state, OLD.producer_group);
    END IF;
    NEW.xid := pg_current_xact_id();
    NEW.decided_at := clock_timestamp();
    IF NEW.state = 'COMMITTED' THEN
        NEW.position := nextval('outbox.position');
        IF NEW.deliver_at > NEW.decided_at THEN
            INSERT INTO outbox.waiting (id, message_id, reason, due_at)
            VALUES (OLD.id, OLD.message_id, 'delayed', NEW.deliver_at);
        END IF;
    ELSIF NEW.state = 'CANCELLED' THEN
        DELETE FROM outbox.waiting w WHERE w.id = OLD.id AND w.reason = 'delayed';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'message % is not waiting for its time, so it can no longer be cancelled', OLD.message_id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_is_waiting',
                      HINT = 'Only a message with deliver_at can be cancelled, until the relay releases it.';
        END IF;
    ELSIF OLD.state = 'COMMITTED' THEN  -- to DEAD, or in doubt to SKIPPED
        PERFORM outbox.leave_lane(OLD.id, OLD.message_id, OLD.lane, OLD.position, NEW.state = 'SKIPPED');
    END IF;
    INSERT INTO outbox.event (id, message_id, kind, from_state, to_state, actor, reason)
    VALUES (OLD.id, OLD.message_id, 'transition', OLD.state, NEW.state, outbox.actor(), NEW.remark);
    RETURN NEW;
END $$;
CREATE TRIGGER message_transition BEFORE UPDATE OF state, remark ON outbox.message FOR EACH ROW
    EXECUTE FUNCTION outbox.make_transition();

-- Also in sessions with session_replication_role = replica: an unguarded change would leave the message where no relay
-- finds it. Partitions that are attached later take this over.
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_admission;
ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_transition;

-- These act with the owner's rights, or as parts of those that do: nobody may hang them on a table of his own.
REVOKE ALL ON FUNCTION outbox.make_transition(), outbox.leave_lane(bigint, uuid, smallint, bigint, boolean) FROM PUBLIC;
