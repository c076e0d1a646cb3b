-- What each service may read, after all tables are there; `outbox db sql --roles` prints this file last. A later revision
-- that adds a table runs it again: relay, checker and warehouse job read every table but keys, turns and what consumers have
-- parked, of which they see all but key, body and headers, as readers and operators do.
DO $$
DECLARE
    reader   text;
    readable text;
    found    text;
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.format('%I', a.attname), ', ') INTO found
    FROM pg_catalog.pg_attribute a
    WHERE a.attrelid OPERATOR(pg_catalog.=) 'outbox.inbox_parked'::pg_catalog.regclass
        AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
        AND a.attname NOT IN ('body', 'header_names', 'header_values');
    FOREACH reader IN ARRAY ARRAY['outbox_relay', 'outbox_checker', 'outbox_etl', 'outbox_reader', 'outbox_operator'] LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) reader::pg_catalog.name
        );
        EXECUTE pg_catalog.format('REVOKE SELECT ON outbox.inbox_parked FROM %I', reader);
        EXECUTE pg_catalog.format('GRANT SELECT (%s) ON outbox.inbox_parked TO %I', found, reader);
        CONTINUE WHEN reader IN ('outbox_reader', 'outbox_operator');
        FOR readable IN
            SELECT pg_catalog.format('outbox.%I', c.relname) FROM pg_catalog.pg_class c
            WHERE c.relnamespace OPERATOR(pg_catalog.=) 'outbox'::pg_catalog.regnamespace AND c.relkind IN ('r', 'p', 'v')
                AND NOT c.relispartition AND c.relname NOT IN ('inbox_parked', 'subject_key', 'turn')
        LOOP
            EXECUTE pg_catalog.format('GRANT SELECT ON %s TO %I', readable, reader);
        END LOOP;
        EXECUTE pg_catalog.format('REVOKE ALL ON outbox.subject_key, outbox.turn FROM %I', reader);
    END LOOP;
END $$;

REVOKE ALL ON FUNCTION outbox.retire_key(uuid) FROM PUBLIC;
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) 'outbox_producer'::pg_catalog.name) THEN
        GRANT EXECUTE ON FUNCTION outbox.retire_key(uuid) TO outbox_producer;
    END IF;
END $$;

-- The relay notes which server it took lanes on, and takes turns with others to raise alarms.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname OPERATOR(pg_catalog.=) 'outbox_relay'::pg_catalog.name) THEN
        GRANT UPDATE (xid) ON outbox.origin TO outbox_relay;
        GRANT EXECUTE ON FUNCTION outbox.take_turn_for_notices() TO outbox_relay;
    END IF;
END $$;
