-- Operators bind consumer groups to roles, also before the first member of a group runs.
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles r WHERE r.rolname = 'outbox_operator') THEN
        GRANT INSERT (name, subscription, orderly, role), UPDATE (role) ON outbox.consumer_group TO outbox_operator;
    END IF;
END $$;
