-- One upgrade at a time, by locks that nobody can hold who may not upgrade: the second finds the work done. Before the
-- first upgrade that is the schema's name, then the table of the revision, which only its owner may lock this way.
--
-- Software of revision 0003 and before takes an advisory lock instead, which any login may hold. So it is taken here if it is
-- free, which keeps that software waiting, and waited for only while a login has it that may upgrade.
DO $turn$
DECLARE
    key      CONSTANT bigint := hashtextextended('outbox.upgrade', 0);
    patience CONSTANT interval := '60 s';
    give_up  CONSTANT timestamptz := clock_timestamp() + patience;
    holder   text;
BEGIN
    LOOP
        EXIT WHEN pg_try_advisory_xact_lock(key);
        PERFORM pg_stat_clear_snapshot();
        SELECT format('session %s of %s (%s), in its transaction since %s', a.pid, a.usename, a.application_name, a.xact_start)
        INTO holder
        FROM pg_locks l
        JOIN pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_namespace n ON n.nspname = 'outbox'
        WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted
            AND l.database = (SELECT b.oid FROM pg_database b WHERE b.datname = current_database())
            AND (l.classid::bigint << 32 | l.objid::bigint) = key
            AND CASE WHEN n.oid IS NULL THEN has_database_privilege(a.usesysid, l.database, 'CREATE')
                     ELSE pg_has_role(a.usesysid, n.nspowner, 'MEMBER') END
        LIMIT 1;
        EXIT WHEN holder IS NULL;
        IF clock_timestamp() > give_up THEN
            RAISE EXCEPTION 'another upgrade is under way, for more than %: %', patience, holder USING ERRCODE = 'lock_not_available';
        END IF;
        PERFORM pg_sleep(0.1);
    END LOOP;
    PERFORM set_config('lock_timeout', extract(epoch FROM patience) || ' s', true);
    IF to_regclass('outbox.schema_version') IS NULL THEN
        BEGIN
            IF to_regnamespace('outbox') IS NULL THEN  -- IF NOT EXISTS asks for the right to create schemas all the same
                CREATE SCHEMA outbox;
            END IF;
            CREATE TABLE outbox.schema_version
                (version_num varchar(32) NOT NULL, CONSTRAINT schema_version_pkc PRIMARY KEY (version_num));
        EXCEPTION
            WHEN unique_violation OR duplicate_schema OR duplicate_table THEN NULL;  -- another upgrade was faster
        END;
    END IF;
    LOOP
        BEGIN
            -- A session notices what others made when it takes a lock that it has not: until then it may remember that the schema of
            -- the faster upgrade does not exist.
            LOCK TABLE pg_catalog.pg_seclabel IN ACCESS SHARE MODE;
            LOCK TABLE outbox.schema_version IN SHARE ROW EXCLUSIVE MODE;
            EXIT;
        EXCEPTION
            WHEN invalid_schema_name OR undefined_table THEN
                IF clock_timestamp() > give_up THEN
                    RAISE;
                END IF;
                PERFORM pg_sleep(0.1);
        END;
    END LOOP;
    PERFORM set_config('lock_timeout', '5s', true);
EXCEPTION
    WHEN lock_not_available THEN
        SELECT string_agg(format('session %s of %s (%s), in its transaction since %s', a.pid, a.usename, a.application_name, a.xact_start), '; ')
        INTO holder
        FROM pg_locks l
        JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'relation' AND l.relation = to_regclass('outbox.schema_version') AND l.granted
            AND l.mode NOT IN ('AccessShareLock', 'RowShareLock');
        RAISE EXCEPTION '%', coalesce(holder || ' locks outbox.schema_version', SQLERRM) USING ERRCODE = 'lock_not_available';
END $turn$;
