-- A hold of one partition: its messages wait, and the topic's others flow. Like a topic's it has a row for each lane.

ALTER TABLE outbox.parked_key ADD COLUMN partition integer, ADD COLUMN partitions integer, ADD COLUMN selector text;
COMMENT ON COLUMN outbox.parked_key.partition IS 'The partition whose messages wait; null: a topic, a key or a message waits.';
COMMENT ON COLUMN outbox.parked_key.partitions IS
    'How many partitions the topic had when one of them was held: it keeps them until nothing waits for a partition of it.';
COMMENT ON COLUMN outbox.parked_key.selector IS 'The topic''s selector then; null: it had none, or no partition is held.';

-- Keeps a lane in which a partition is held from a relay of a version that does not know such a hold: it would publish newer
-- messages of that partition in front of those that wait. So does a lane that is delivered exactly once. It takes the error for a lock, and tries again. The owner of a lane
-- locks its row before it writes a hold, and so does whoever takes it, so neither misses the other.
CREATE FUNCTION outbox.keep_from_older_relay() RETURNS trigger
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox.lease e WHERE e.epoch = NEW.epoch AND e.version < 2)
       AND OLD.mode = 'exactly-once' THEN
        RAISE EXCEPTION 'lane % is delivered exactly once, which this version of the relay does not know', NEW.lane
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Run a relay of the newer version with --delivery at-least-once, and stop it, before one of this version.';
    END IF;
    IF EXISTS (SELECT FROM outbox.lease e WHERE e.epoch = NEW.epoch AND e.version < 2)
       AND EXISTS (SELECT FROM outbox.parked_key k WHERE k.lane = NEW.lane AND k.partition IS NOT NULL) THEN
        RAISE EXCEPTION 'lane % has messages of a partition that is held, which this version of the relay does not know', NEW.lane
            USING ERRCODE = 'lock_not_available',
                  HINT = 'Run a relay of the newer version until "outbox holds ls" lists no partition.';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER keep_from_older_relay BEFORE UPDATE OF epoch ON outbox.lane FOR EACH ROW
    WHEN (NEW.epoch <> OLD.epoch) EXECUTE FUNCTION outbox.keep_from_older_relay();
