-- Partitions and rows of the idle benchmark.

-- name: split
-- Partitions of a given width in place of the ones that a new schema has; two more than the rows need.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN SELECT suffix FROM outbox.partition LOOP
        EXECUTE format('DROP TABLE outbox.%I, outbox.%I, outbox.%I', 'message_p' || old.suffix,
                       'publication_p' || old.suffix, 'event_p' || old.suffix);
    END LOOP;
    FOR number IN 1..{partitions} + 2 LOOP
        PERFORM outbox.add_partition({width});
    END LOOP;
END $$

-- name: begin_writing
-- Makes this session's transaction one that is running in every snapshot.
SELECT pg_current_xact_id()

-- name: nothing
-- A statement that does nothing: what a round trip costs by itself.
SELECT 1

-- name: analyse
-- What autovacuum would have done.
VACUUM (ANALYZE) outbox.message

-- name: sessions
-- How many sessions the relay has.
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'outbox relay%'
