-- Which locks an upgrade takes: all that its scripts need of the tables that are there, before the first script, so that no script
-- waits for anybody while others wait for it. A script that waited for one table while it held another one ran into deadlocks with
-- consumers, and PostgreSQL ended whoever noticed first: the upgrade, or somebody's business transaction.
--
-- First those beside which everybody goes on but vacuums and sessions that add or drop partitions: 5 s, more than deadlock_timeout, which
-- ends an autovacuum. Then those that lock others out. The first of them, of the table that each listener writes first, is waited for
-- while nobody waits for another one: 5 s, and consumers queue behind it. All others follow within half of deadlock_timeout, or
-- all are given back: whoever waits for the upgrade looks for a deadlock after deadlock_timeout, and finds the upgrade waiting for nobody.
-- Whoever was held up works for half a second, and the next attempt follows, for 10 s. Then the upgrade fails and has changed nothing.
DO $locks$
DECLARE
    longest CONSTANT interval := least(current_setting('deadlock_timeout')::interval / 2, '500 ms');
    patience CONSTANT interval := '10 s';
    give_up CONSTANT timestamptz := clock_timestamp() + patience;
    alone   CONSTANT text[] := '{inbox,inbox_held_key,inbox_parked,inbox_replay,inbox_position,consumer_group,consumer_member,lease,parked_key}';
    due     timestamptz;
    wanted  record;
BEGIN
    FOR wanted IN
        SELECT to_regclass('outbox.' || t.name) AS name
        FROM unnest('{partition_lock,inbox_partition_lock,message,publication,event}' || alone) WITH ORDINALITY AS t (name, nr)
        WHERE to_regclass('outbox.' || t.name) IS NOT NULL ORDER BY t.nr
    LOOP
        EXECUTE format('LOCK TABLE %s IN SHARE UPDATE EXCLUSIVE MODE', wanted.name);
    END LOOP;
    LOOP
        due := NULL;
        BEGIN
            FOR wanted IN
                -- Policies are for a table, and not for its partitions; a trigger is made for both.
                SELECT to_regclass('outbox.' || t.name) AS name, 'ACCESS EXCLUSIVE' AS mode, t.nr
                FROM unnest(alone) WITH ORDINALITY AS t (name, nr)
                WHERE to_regclass('outbox.' || t.name) IS NOT NULL
                UNION ALL
                SELECT to_regclass('outbox.lane'), 'SHARE ROW EXCLUSIVE', 99 WHERE to_regclass('outbox.lane') IS NOT NULL
                UNION ALL
                SELECT t.relid, 'SHARE ROW EXCLUSIVE', 100 + t.level
                FROM pg_partition_tree(to_regclass('outbox.message')) t
                ORDER BY nr
            LOOP
                PERFORM set_config('lock_timeout', CASE WHEN due IS NULL THEN '5s' ELSE
                    greatest(1, extract(epoch FROM due - clock_timestamp()) * 1000)::integer::text END, true);
                EXECUTE format('LOCK TABLE ONLY %s IN %s MODE', wanted.name, wanted.mode);
                due := coalesce(due, clock_timestamp() + longest);
            END LOOP;
            EXIT;
        EXCEPTION
            WHEN lock_not_available OR deadlock_detected THEN
                IF clock_timestamp() > give_up THEN
                    RAISE;
                END IF;
        END;
        PERFORM pg_sleep(0.5);
    END LOOP;
END $locks$;
