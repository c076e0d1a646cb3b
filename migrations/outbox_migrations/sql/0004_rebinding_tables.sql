-- What else 0001 to 0003 may have bound to functions or operators of strangers, see 0004_rebinding.sql: defaults, checks, indexes,
-- conditions of triggers, and views. To make one again locks its table against everybody, so that is done only to one that depends
-- on a function or operator from elsewhere: nothing is locked where there is none. A check is not asked about the rows that are
-- there, which would read them all under the lock. An index is built again, and its table is locked meanwhile.
DO $rebind$
DECLARE
    bound record;
BEGIN
    SET LOCAL lock_timeout = '1s';
    FOR bound IN
        WITH depends AS (
            SELECT d.classid, d.objid FROM pg_depend d JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
            WHERE p.pronamespace NOT IN ('outbox'::regnamespace, 'pg_catalog'::regnamespace)
            UNION
            SELECT d.classid, d.objid FROM pg_depend d JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
            WHERE o.oprnamespace NOT IN ('outbox'::regnamespace, 'pg_catalog'::regnamespace)
        ), relations AS (  -- a table or an index by its name, a partition by that of its parent
            SELECT c.oid, c.relname FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND NOT c.relispartition
            UNION ALL
            SELECT i.inhrelid, c.relname FROM pg_class c JOIN pg_inherits i ON i.inhparent = c.oid
            WHERE c.relnamespace = 'outbox'::regnamespace
        ), foreigners (kind, relation, name) AS (
            SELECT 'default', r.relname, a.attname FROM depends d
            JOIN pg_attrdef f ON d.classid = 'pg_attrdef'::regclass AND f.oid = d.objid
            JOIN relations r ON r.oid = f.adrelid
            JOIN pg_attribute a ON a.attrelid = f.adrelid AND a.attnum = f.adnum
            UNION
            SELECT CASE WHEN k.contypid = 0 THEN 'check' ELSE 'domain' END, coalesce(r.relname, t.typname), k.conname FROM depends d
            JOIN pg_constraint k ON d.classid = 'pg_constraint'::regclass AND k.oid = d.objid
            LEFT JOIN relations r ON r.oid = k.conrelid
            LEFT JOIN pg_type t ON t.oid = k.contypid AND t.typnamespace = 'outbox'::regnamespace
            UNION
            SELECT 'index', NULL, r.relname FROM depends d
            JOIN relations r ON d.classid = 'pg_class'::regclass AND r.oid = d.objid
            UNION
            SELECT 'trigger', r.relname, t.tgname FROM depends d
            JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
            JOIN relations r ON r.oid = t.tgrelid
            UNION
            SELECT 'view', r.relname, w.rulename FROM depends d
            JOIN pg_rewrite w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
            JOIN relations r ON r.oid = w.ev_class
        )
        SELECT m.* FROM (VALUES
            ('default', 'alarm', 'seen_at', $x$clock_timestamp()$x$), ('default', 'alarm', 'since', $x$clock_timestamp()$x$),
            ('default', 'certificate', 'verified_at', $x$clock_timestamp()$x$),
            ('default', 'certificate', 'xid', $x$pg_current_xact_id()$x$),
            ('default', 'consumer_group', 'registered_at', $x$clock_timestamp()$x$),
            ('default', 'consumer_member', 'idle_since', $x$clock_timestamp()$x$),
            ('default', 'consumer_member', 'seen_at', $x$clock_timestamp()$x$),
            ('default', 'consumer_member', 'started_at', $x$clock_timestamp()$x$),
            ('default', 'event', 'happened_at', $x$clock_timestamp()$x$), ('default', 'event', 'xid', $x$pg_current_xact_id()$x$),
            ('default', 'failover', 'noticed_at', $x$clock_timestamp()$x$),
            ('default', 'idempotency', 'born_at', $x$clock_timestamp()$x$),
            ('default', 'inbox', 'handled_at', $x$clock_timestamp()$x$),
            ('default', 'inbox_floor', 'raised_at', $x$clock_timestamp()$x$),
            ('default', 'inbox_held_key', 'since', $x$clock_timestamp()$x$),
            ('default', 'inbox_parked', 'parked_at', $x$clock_timestamp()$x$),
            ('default', 'inbox_position', 'moved_at', $x$clock_timestamp()$x$),
            ('default', 'inbox_replay', 'started_at', $x$clock_timestamp()$x$),
            ('default', 'lease', 'joined_at', $x$clock_timestamp()$x$), ('default', 'message', 'born_at', $x$clock_timestamp()$x$),
            ('default', 'message', 'id', $x$currval('outbox.position'::regclass)$x$),
            ('default', 'message', 'message_id', $x$outbox.new_message_id(currval('outbox.position'::regclass))$x$),
            ('default', 'message', 'position', $x$nextval('outbox.position'::regclass)$x$),
            ('default', 'message', 'xid', $x$pg_current_xact_id()$x$), ('default', 'notice', 'id', $x$gen_random_uuid()$x$),
            ('default', 'notice', 'raised_at', $x$clock_timestamp()$x$),
            ('default', 'notice', 'send_after', $x$clock_timestamp()$x$),
            ('default', 'parked_key', 'since', $x$clock_timestamp()$x$),
            ('default', 'producer_group', 'registered_at', $x$clock_timestamp()$x$),
            ('default', 'publication', 'published_at', $x$clock_timestamp()$x$),
            ('default', 'publication', 'xid', $x$pg_current_xact_id()$x$), ('default', 'subject_key', 'created_at', $x$now()$x$),
            ('default', 'topic', 'registered_at', $x$clock_timestamp()$x$),
            ('default', 'waiting', 'since', $x$clock_timestamp()$x$),
            ('check', 'alarm', 'alarm_kind_check',
             $x$kind = ANY (ARRAY['no_checker', 'failing', 'flood', 'exhausted', 'silent', 'rolled_back'])$x$),
            ('check', 'certificate', 'certificate_window_is_one', $x$window_lo < window_hi$x$),
            ('check', 'consumer_group', 'consumer_group_name_check', $x$(length(name) >= 1) AND (length(name) <= 255)$x$),
            ('check', 'consumer_group', 'consumer_group_name_check1', $x$name !~ '[[:space:][:cntrl:]]'$x$),
            ('check', 'consumer_group', 'consumer_group_subscription_check', $x$jsonb_typeof(subscription) = 'object'$x$),
            ('check', 'failover', 'failover_is_scanned_with_a_result', $x$(scanned_at IS NULL) = (lost IS NULL)$x$),
            ('check', 'failover', 'failover_lost_check', $x$lost >= 0$x$),
            ('check', 'idempotency', 'idempotency_key_check', $x$(length(key) >= 1) AND (length(key) <= 255)$x$),
            ('check', 'inbox_floor', 'inbox_floor_born_before_check', $x$isfinite(born_before)$x$),
            ('check', 'inbox_parked', 'inbox_parked_attempts_check', $x$attempts >= 0$x$),
            ('check', 'inbox_parked', 'inbox_parked_behind_a_key', $x$(state <> 'waiting') OR (order_key IS NOT NULL)$x$),
            ('check', 'inbox_parked', 'inbox_parked_headers_are_pairs',
             $x$cardinality(header_names) = cardinality(header_values)$x$),
            ('check', 'inbox_parked', 'inbox_parked_retry_is_due', $x$(state = 'retry') = (due_at IS NOT NULL)$x$),
            ('check', 'inbox_parked', 'inbox_parked_state_check', $x$state = ANY (ARRAY['retry', 'waiting', 'dead'])$x$),
            ('check', 'inbox_position', 'inbox_position_next_off_check', $x$next_off >= 0$x$),
            ('check', 'lane', 'lane_after_has_a_base', $x$(base IS NULL) = (after IS NULL)$x$),
            ('check', 'lane', 'lane_in_doubt_is_stopped', $x$(stopped_error IS NOT NULL) OR (NOT stopped_in_doubt)$x$),
            ('check', 'lane', 'lane_lane_check', $x$(lane >= 0) AND (lane <= 7)$x$),
            ('check', 'lane', 'lane_mode_check', $x$mode = ANY (ARRAY['at-least-once', 'exactly-once'])$x$),
            ('check', 'producer_group', 'producer_group_callback_is_known',
             $x$(callback IS NULL) OR (COALESCE((callback ->> 'kind'), '') = ANY (ARRAY['http', 'sql']))$x$),
            ('check', 'producer_group', 'producer_group_check_after_check',
             $x$(check_after >= '00:00:00'::interval) AND (check_after <= '3650 days'::interval)$x$),
            ('check', 'producer_group', 'producer_group_check_interval_check',
             $x$(check_interval >= '00:00:00.001'::interval) AND (check_interval <= '3650 days'::interval)$x$),
            ('check', 'producer_group', 'producer_group_check_timeout_check',
             $x$(check_timeout >= '00:00:00.001'::interval) AND (check_timeout <= '3650 days'::interval)$x$),
            ('check', 'producer_group', 'producer_group_intervals_grow', $x$max_check_interval >= check_interval$x$),
            ('check', 'producer_group', 'producer_group_is_asked_in_time', $x$max_age > check_after$x$),
            ('check', 'producer_group', 'producer_group_max_age_check', $x$max_age <= '3650 days'::interval$x$),
            ('check', 'producer_group', 'producer_group_max_check_interval_check',
             $x$max_check_interval <= '3650 days'::interval$x$),
            ('check', 'producer_group', 'producer_group_max_checks_check', $x$(max_checks >= 1) AND (max_checks <= 1000000)$x$),
            ('check', 'producer_group', 'producer_group_message_type_check',
             $x$message_type = ANY (ARRAY['NORMAL', 'TRANSACTION', 'MIXED'])$x$),
            ('check', 'producer_group', 'producer_group_name_check', $x$(length(name) >= 1) AND (length(name) <= 255)$x$),
            ('check', 'producer_group', 'producer_group_name_check1', $x$name !~ '[[:space:][:cntrl:]]'$x$),
            ('check', 'producer_group', 'producer_group_policy_check', $x$policy = ANY (ARRAY['ROLLBACK', 'EXHAUSTED'])$x$),
            ('check', 'producer_group', 'producer_group_workers_check', $x$(workers >= 1) AND (workers <= 64)$x$),
            ('check', 'publication', 'publication_after_has_a_base', $x$(base IS NULL) = (after IS NULL)$x$),
            ('check', 'publication', 'publication_is_complete',
             $x$(cardinality(positions) = cardinality(partitions)) AND (cardinality(positions) = cardinality(offsets)) AND (cardinality(positions) > 0)$x$),
            ('check', 'subject_key', 'subject_key_check',
             $x$num_nulls(subject, wrapped, master_id) = CASE WHEN (destroyed_at IS NULL) THEN 0 ELSE 3 END$x$),
            ('check', 'subject_key', 'subject_key_check1', $x$(destroyed_at IS NULL) = (destroyed_by IS NULL)$x$),
            ('check', 'subject_key', 'subject_key_master_id_check',
             $x$(length(master_id) >= 1) AND (length(master_id) <= 255)$x$),
            ('check', 'subject_key', 'subject_key_subject_check', $x$(length(subject) >= 1) AND (length(subject) <= 255)$x$),
            ('check', 'subject_key', 'subject_key_wrapped_check',
             $x$(octet_length(wrapped) >= 1) AND (octet_length(wrapped) <= 65536)$x$),
            ('check', 'topic', 'topic_fifo_keeps_its_order', $x$(NOT skip_ahead) OR (message_type <> 'FIFO')$x$),
            ('check', 'topic', 'topic_is_held_by_a_pause',
             $x$((repartition_to IS NULL) = (repartition_groups IS NULL)) AND ((repartition_to IS NULL) OR (paused_at IS NOT NULL))$x$),
            ('check', 'topic', 'topic_max_message_bytes_check', $x$max_message_bytes > 0$x$),
            ('check', 'topic', 'topic_message_type_check',
             $x$message_type = ANY (ARRAY['NORMAL', 'FIFO', 'DELAY', 'TRANSACTION', 'MIXED'])$x$),
            ('check', 'topic', 'topic_name_is_legal',
             $x$(name ~ '^[a-zA-Z0-9._-]{1,249}$') AND (name <> ALL (ARRAY['.', '..']))$x$),
            ('check', 'topic', 'topic_partitions_check', $x$partitions > 0$x$),
            ('check', 'topic', 'topic_partitions_in_kafka_check', $x$partitions_in_kafka > 0$x$),
            ('check', 'topic', 'topic_pause_is_explained',
             $x$((paused_at IS NULL) = (paused_by IS NULL)) AND ((paused_at IS NULL) = (pause_reason IS NULL))$x$),
            ('check', 'topic', 'topic_repartition_to_check', $x$repartition_to > 0$x$),
            ('check', 'waiting', 'waiting_delay_has_an_end', $x$(reason <> 'delayed') OR (due_at IS NOT NULL)$x$),
            ('check', 'waiting', 'waiting_failure_has_a_key', $x$(reason <> 'failed') OR (parked IS NOT NULL)$x$),
            ('check', 'waiting', 'waiting_parked_has_a_place', $x$(parked IS NULL) = (place IS NULL)$x$),
            ('check', 'waiting', 'waiting_reason_check',
             $x$reason = ANY (ARRAY['delayed', 'held', 'parked', 'failed', 'expired'])$x$),
            ('domain', 'lane_number', 'message_lane_is_one', $x$VALUE >= 0 AND VALUE <= 7$x$),
            ('index', 'transition', 'transition_once',
             $x$CREATE UNIQUE INDEX transition_once ON outbox.transition (coalesce(from_state, ''), to_state)$x$),
            ('index', 'message', 'message_finder',
             $x$CREATE INDEX message_finder ON outbox.message (xid, lane, hashtext(topic)) WHERE state = 'COMMITTED'$x$),
            ('index', 'message', 'message_unsettled',
             $x$CREATE INDEX message_unsettled ON outbox.message (producer_group, id) WHERE state IN ('UNKNOWN', 'EXHAUSTED', 'DEAD')$x$),
            ('index', 'message', 'message_foreign_id',
             $x$CREATE INDEX message_foreign_id ON outbox.message (message_id) WHERE get_byte(uuid_send(message_id), 6) >> 4 <> 8$x$),
            ('index', 'message', 'message_index_keys',
             $x$CREATE INDEX message_index_keys ON outbox.message USING gin (index_keys) WHERE index_keys <> '{}'$x$),
            ('index', 'publication', 'publication_span',
             $x$CREATE INDEX publication_span ON outbox.publication USING gist (int8range(lo, hi, '[]'))$x$),
            ('index', 'parked_key', 'parked_key_once',
             $x$CREATE UNIQUE INDEX parked_key_once ON outbox.parked_key (lane, topic, coalesce(queue, -1), coalesce(sha256(order_key), '')) WHERE queue IS NOT NULL OR order_key IS NOT NULL$x$),
            ('index', 'waiting', 'waiting_failed',
             $x$CREATE INDEX waiting_failed ON outbox.waiting (id) WHERE reason IN ('failed', 'expired')$x$),
            ('index', 'inbox_parked', 'inbox_parked_due',
             $x$CREATE INDEX inbox_parked_due ON outbox.inbox_parked (group_id, due_at) WHERE state = 'retry'$x$),
            ('index', 'inbox_parked', 'inbox_parked_head',
             $x$CREATE UNIQUE INDEX inbox_parked_head ON outbox.inbox_parked (group_id, topic_id, order_key) WHERE order_key IS NOT NULL AND state IN ('retry', 'dead')$x$),
            ('index', 'inbox_parked', 'inbox_parked_dead',
             $x$CREATE INDEX inbox_parked_dead ON outbox.inbox_parked (id) WHERE state = 'dead'$x$),
            ('trigger', 'topic', 'topic_is_changed',
             $x$CREATE TRIGGER topic_is_changed AFTER UPDATE ON outbox.topic FOR EACH ROW
                 WHEN (OLD.partitions IS DISTINCT FROM NEW.partitions OR OLD.selector IS DISTINCT FROM NEW.selector
                       OR OLD.paused_at IS DISTINCT FROM NEW.paused_at OR OLD.pause_when_grown <> NEW.pause_when_grown
                       OR OLD.skip_ahead <> NEW.skip_ahead
                       OR (NEW.pause_when_grown AND OLD.partitions_in_kafka IS DISTINCT FROM NEW.partitions_in_kafka))
                 EXECUTE FUNCTION outbox.count_topic_change()$x$),
            ('trigger', 'inbox_parked', 'copy_dead_letter',
             $x$CREATE CONSTRAINT TRIGGER copy_dead_letter AFTER INSERT OR UPDATE OF state ON outbox.inbox_parked
                 DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW WHEN (NEW.state = 'dead' AND NOT NEW.is_copied) EXECUTE FUNCTION outbox.copy_dead_letter()$x$),
            ('view', 'message_status', '_RETURN',
             $x$CREATE OR REPLACE VIEW outbox.message_status AS
             SELECT m.id,
                    m.message_id,
                    CASE WHEN m.state <> 'COMMITTED' THEN m.state WHEN p.published_at IS NOT NULL THEN 'PUBLISHED'
                         WHEN w.reason IN ('failed', 'expired') THEN 'DEAD' ELSE m.state END AS status,
                    m.topic,
                    p.partition,
                    p."offset",
                    m.key,
                    m.order_key,
                    m.tags,
                    m.index_keys,
                    m.producer_group,
                    m.transaction_id,
                    m.checker,
                    m.biz_type,
                    m.biz_id,
                    m.born_at,
                    m.decided_at,
                    m.deliver_at,
                    CASE WHEN m.deliver_before IS NOT NULL
                         THEN least(greatest(m.deliver_before, '0001-01-02 UTC'), '9999-12-30 UTC') END AS deliver_before,
                    p.published_at,
                    w.reason AS waiting,
                    w.due_at,
                    c.checks,
                    c.due_at AS check_due_at,
                    m.lane,
                    m.position,
                    m.xid,
                    m.state,
                    m.remark
             FROM outbox.message m
             LEFT JOIN outbox.waiting w ON w.id = m.id
             LEFT JOIN outbox.pending_check c ON c.id = m.id AND m.state = 'UNKNOWN'
             LEFT JOIN LATERAL (
                 SELECT b.published_at,
                        b.partitions[array_position(b.positions, m.position)] AS partition,
                        b.offsets[array_position(b.positions, m.position)] AS "offset"
                 FROM outbox.publication b
                 WHERE int8range(b.lo, b.hi, '[]') @> m.position
                   -- Said again for a plan without the index: cheap to check before the arrays are read, in this order.
                   AND b.lo <= m.position
                   AND b.hi >= m.position
                   AND b.positions @> ARRAY[m.position]
                 ORDER BY b.published_at
                 LIMIT 1
             ) p ON m.state = 'COMMITTED'$x$),
            ('view', 'partition', '_RETURN',
             $x$CREATE OR REPLACE VIEW outbox.partition AS
             SELECT c.oid::regclass AS name,
                    substr(c.relname, length('message_p') + 1) AS suffix,
                    (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)'))[1]::bigint AS lower,
                    (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''(\d+)''\) TO \(''(\d+)''\)'))[2]::bigint AS upper
             FROM pg_inherits i
             JOIN pg_class c ON c.oid = i.inhrelid
             WHERE i.inhparent = 'outbox.message'::regclass AND NOT i.inhdetachpending
                 AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'$x$)
        ) AS m (kind, relation, name, definition)
        JOIN foreigners f ON f.kind = m.kind AND f.name = m.name AND (f.kind = 'index' OR f.relation = m.relation)
    LOOP
        CASE bound.kind
            WHEN 'default' THEN
                EXECUTE format('ALTER TABLE outbox.%I ALTER %I SET DEFAULT %s', bound.relation, bound.name, bound.definition);
            WHEN 'check' THEN
                EXECUTE format('ALTER TABLE outbox.%I DROP CONSTRAINT %I, ADD CONSTRAINT %2$I CHECK (%s) NOT VALID',
                               bound.relation, bound.name, bound.definition);
            WHEN 'domain' THEN
                EXECUTE format('ALTER DOMAIN outbox.%I DROP CONSTRAINT %I', bound.relation, bound.name);
                EXECUTE format('ALTER DOMAIN outbox.%I ADD CONSTRAINT %I CHECK (%s) NOT VALID',
                               bound.relation, bound.name, bound.definition);
            WHEN 'index' THEN
                EXECUTE format('DROP INDEX outbox.%I', bound.name);
                EXECUTE bound.definition;
            WHEN 'trigger' THEN
                EXECUTE format('DROP TRIGGER %I ON outbox.%I', bound.name, bound.relation);
                EXECUTE bound.definition;
            WHEN 'view' THEN
                EXECUTE bound.definition;
        END CASE;
    END LOOP;
    SET LOCAL lock_timeout = '5s';
END $rebind$;

UPDATE outbox.schema_version SET oldest_software = '0001';
