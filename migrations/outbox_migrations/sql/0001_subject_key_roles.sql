-- Least privilege: keys are for who encrypts and decrypts. Services that carry bodies (relay, checker, warehouse) have none,
-- and neither have readers. Operators destroy keys and wrap them again; a wrapped key opens nothing without the master key.
REVOKE ALL ON FUNCTION outbox.destroy_keys(text) FROM PUBLIC;
DO $$
DECLARE
    wanted text;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['outbox_producer', 'outbox_consumer', 'outbox_operator', 'outbox_relay', 'outbox_checker',
                                  'outbox_etl'] LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = wanted);
        CASE wanted
            WHEN 'outbox_producer' THEN
                GRANT SELECT, INSERT (id, subject, wrapped, master_id) ON outbox.subject_key TO outbox_producer;
            WHEN 'outbox_consumer' THEN
                GRANT SELECT ON outbox.subject_key TO outbox_consumer;
            WHEN 'outbox_operator' THEN
                GRANT SELECT, UPDATE (subject, wrapped, master_id, retired_at, destroyed_at, destroyed_by)
                    ON outbox.subject_key TO outbox_operator;
                GRANT EXECUTE ON FUNCTION outbox.destroy_keys(text) TO outbox_operator;
            ELSE
                -- They were granted all tables, if this file is run again.
                EXECUTE format('REVOKE ALL ON outbox.subject_key FROM %I', wanted);
        END CASE;
    END LOOP;
END $$;
