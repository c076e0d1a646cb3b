-- Least privilege: one role per job, without login; grant them to your own users.
-- Roles belong to the whole cluster, so they may exist already; a user who may not create roles gets a notice
-- and can create them later and run this file again (`outbox db sql --roles` prints it).
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_producer', 'outbox_relay', 'outbox_checker', 'outbox_consumer',
                                  'outbox_etl', 'outbox_reader', 'outbox_operator',
                                  'outbox_trusted_producer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = wanted) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % does not exist and % may not create it', wanted, current_user;
                WHEN duplicate_object OR unique_violation THEN NULL;  -- another database's upgrade was faster
            END;
        END IF;
    END LOOP;

    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_producer') THEN
        GRANT USAGE ON SCHEMA outbox TO outbox_producer;
        GRANT USAGE ON SEQUENCE outbox.position TO outbox_producer;
        GRANT INSERT (message_id, topic, key, body, headers, order_key, selector, queue, tags, index_keys, state,
                      producer_group, transaction_id, checker, biz_type, biz_id, deliver_at, deliver_before, check_after,
                      traceparent, lane)
            ON outbox.message TO outbox_producer;
        GRANT SELECT (id, message_id, topic, key, order_key, queue, state, remark, decided_at, deliver_at, deliver_before, producer_group,
                      transaction_id, born_at)
            ON outbox.message TO outbox_producer;
        GRANT UPDATE (state, remark) ON outbox.message TO outbox_producer;
        GRANT SELECT (id, reason) ON outbox.waiting TO outbox_producer;
        GRANT SELECT, INSERT ON outbox.idempotency TO outbox_producer;
        -- A group may be named by who uses it; how it is asked about is the operator's to say.
        GRANT INSERT (name, message_type) ON outbox.producer_group TO outbox_producer;
        GRANT SELECT ON outbox.topic, outbox.producer_group, outbox.transition, outbox.event,
            outbox.schema_version TO outbox_producer;
    END IF;

    -- Nothing by itself, to be granted in addition: rows of these applications that state their lane are not checked
    -- again. For those that send with the Python library only, which has checked them.
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_trusted_producer') THEN
        GRANT EXECUTE ON FUNCTION outbox.trusts_stated_lanes() TO outbox_trusted_producer;
    END IF;

    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_relay') THEN
        GRANT USAGE ON SCHEMA outbox TO outbox_relay;
        GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO outbox_relay;
        GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA outbox TO outbox_relay;
        GRANT INSERT ON outbox.publication, outbox.topic, outbox.failover TO outbox_relay;
        GRANT INSERT, DELETE ON outbox.waiting TO outbox_relay;
        GRANT UPDATE (reason, in_doubt, parked, place) ON outbox.waiting TO outbox_relay;
        GRANT INSERT, UPDATE, DELETE ON outbox.parked_key TO outbox_relay;
        GRANT UPDATE ON outbox.lane TO outbox_relay;
        GRANT INSERT, UPDATE, DELETE ON outbox.lease, outbox.notice TO outbox_relay;
        GRANT UPDATE ON outbox.failover TO outbox_relay;
        GRANT UPDATE (xid, position) ON outbox.message TO outbox_relay;
        GRANT UPDATE (partitions_in_kafka) ON outbox.topic TO outbox_relay;
    END IF;

    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_checker') THEN
        GRANT USAGE ON SCHEMA outbox TO outbox_checker;
        GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO outbox_checker;
        GRANT SELECT, USAGE ON SEQUENCE outbox.position TO outbox_checker;
        GRANT UPDATE (state, remark) ON outbox.message TO outbox_checker;
        GRANT INSERT ON outbox.event TO outbox_checker;
        GRANT INSERT, UPDATE, DELETE ON outbox.pending_check, outbox.alarm TO outbox_checker;
    END IF;

    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_consumer') THEN
        GRANT USAGE ON SCHEMA outbox TO outbox_consumer;
        GRANT SELECT ON outbox.schema_version TO outbox_consumer;
    END IF;

    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_etl') THEN
        GRANT USAGE ON SCHEMA outbox TO outbox_etl;
        GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO outbox_etl;
        GRANT SELECT ON SEQUENCE outbox.position TO outbox_etl;
        GRANT INSERT ON outbox.certificate TO outbox_etl;
    END IF;

    -- A reader sees that messages exist and what became of them, never a body or a header.
    -- An operator sees the same, decides what is left undecided, sets aside what cannot be published, and registers
    -- topics and groups. UPDATE (retry_requested_at) is what the guards know an operator by.
    FOREACH wanted IN ARRAY ARRAY['outbox_reader', 'outbox_operator'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = wanted);
        EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', wanted);
        EXECUTE format('GRANT SELECT (xid, position, id, message_id, born_at, decided_at, deliver_at, deliver_before, check_after, queue,
                                      lane, state, topic, key, order_key, selector, tags, index_keys, producer_group,
                                      transaction_id, checker, biz_type, biz_id, traceparent, remark)
                        ON outbox.message TO %I', wanted);
        EXECUTE format('GRANT SELECT ON outbox.message_status, outbox.partition, outbox.publication, outbox.event,
                        outbox.waiting, outbox.parked_key, outbox.topic, outbox.topic_generation, outbox.producer_group,
                        outbox.pending_check, outbox.alarm, outbox.notice, outbox.lane, outbox.lease, outbox.failover,
                        outbox.transition, outbox.certificate, outbox.schema_version TO %I',
                       wanted);
        EXECUTE format('GRANT SELECT ON SEQUENCE outbox.position TO %I', wanted);
    END LOOP;

    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_operator') THEN
        GRANT UPDATE (state, remark) ON outbox.message TO outbox_operator;
        GRANT UPDATE (retry_requested_at) ON outbox.lane TO outbox_operator;
        GRANT UPDATE (is_draining) ON outbox.lease TO outbox_operator;
        GRANT UPDATE (scanned_at, lost) ON outbox.failover TO outbox_operator;
        GRANT UPDATE (requested_at, requested_by) ON outbox.parked_key TO outbox_operator;
        GRANT INSERT, UPDATE ON outbox.topic, outbox.producer_group TO outbox_operator;
        GRANT INSERT, UPDATE (due_at) ON outbox.pending_check TO outbox_operator;
    END IF;
END $$;

-- The partitions that are there already; later ones are shared as they are added.
DO $$
BEGIN
    PERFORM outbox.share_partition(p.suffix) FROM outbox.partition p;
END $$;

REVOKE ALL ON FUNCTION outbox.share_partition(text) FROM PUBLIC;
REVOKE ALL ON FUNCTION outbox.add_partition(bigint), outbox.ensure_partitions(integer) FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_relay') THEN
        GRANT EXECUTE ON FUNCTION outbox.add_partition(bigint), outbox.ensure_partitions(integer) TO outbox_relay;
    END IF;
    -- The checker makes partitions ahead, too, so that inserts go on while the relay is away.
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_checker') THEN
        GRANT EXECUTE ON FUNCTION outbox.ensure_partitions(integer) TO outbox_checker;
    END IF;
END $$;
