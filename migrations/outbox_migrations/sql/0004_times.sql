-- born_at is a time that every calendar has, as deliver_at is, whoever states it: the warehouse makes days of it.

-- The same as before (see 0003_admission.sql), and refuses such a time before a trusted row goes its short way. Of bounds, not of
-- texts: to_timestamp is immutable, so PL/pgSQL keeps its value. Only INSERT is checked: a row of before can still be decided.
CREATE OR REPLACE FUNCTION outbox.admit_message() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF (NEW.lane IS NOT NULL AND NEW.state OPERATOR(pg_catalog.=) 'COMMITTED' AND NEW.deliver_at IS NULL
        AND NEW.born_at OPERATOR(pg_catalog.>=) pg_catalog.to_timestamp(-62135596800)
        AND NEW.born_at OPERATOR(pg_catalog.<=) pg_catalog.to_timestamp(253402214400)
        AND pg_catalog.has_function_privilege(outbox.acting_role(), 'outbox.trusts_stated_lanes()'::pg_catalog.regprocedure,
                                              'EXECUTE')) IS NOT TRUE THEN
        IF NEW.born_at OPERATOR(pg_catalog.<) pg_catalog.to_timestamp(-62135596800)
           OR NEW.born_at OPERATOR(pg_catalog.>) pg_catalog.to_timestamp(253402214400) THEN
            RAISE EXCEPTION 'born_at % is not a valid time; expected the years 1 to 9999', NEW.born_at
                USING ERRCODE = 'check_violation', CONSTRAINT = 'message_born_at_is_a_time', COLUMN = 'born_at',
                      HINT = 'Allowed: the years 1 to 9999, or leave it out for the time of the insert.';
        END IF;
        NEW.lane := outbox.admit_closely(NEW);
    END IF;
    RETURN NEW;
END $$;
