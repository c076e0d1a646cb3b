-- Changes of topics are counted, so that relays notice them and state which ones they publish by.

-- Relays publish nothing of a topic until "paused_at" is null again.
ALTER TABLE outbox.topic
    ADD paused_at    timestamptz,
    ADD paused_by    text,
    ADD pause_reason text,
    ADD CONSTRAINT topic_pause_is_explained
        CHECK ((paused_at IS NULL) = (paused_by IS NULL) AND (paused_at IS NULL) = (pause_reason IS NULL));

-- `outbox topic repartition --wait-for-group` holds a topic by a pause: the count that it shall have once these consumer
-- groups have read the old partitions. Null: no such move is under way.
ALTER TABLE outbox.topic
    ADD repartition_to     integer CHECK (repartition_to > 0),
    ADD repartition_groups text[],
    ADD CONSTRAINT topic_is_held_by_a_pause
        CHECK ((repartition_to IS NULL) = (repartition_groups IS NULL)
               AND (repartition_to IS NULL OR paused_at IS NOT NULL));

-- Relays publish nothing of a topic that has more partitions in Kafka than are pinned, if that is asked for.
ALTER TABLE outbox.topic ADD pause_when_grown boolean NOT NULL DEFAULT false;

-- A message that cannot be published parks alone, and the next ones of its key go on without it. A FIFO topic keeps its order.
ALTER TABLE outbox.topic
    ADD skip_ahead boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT topic_fifo_keeps_its_order CHECK (NOT skip_ahead OR message_type <> 'FIFO');

-- How often a topic was paused, or went on, or grew and pauses then, or its partition count or selector was changed. One row, changed by
-- the transaction that changes the topic and locked until its end: so a relay that reads a generation, and the topics
-- afterwards, has seen all changes up to it.
CREATE TABLE outbox.topic_generation (
    is_the_row boolean PRIMARY KEY DEFAULT true CHECK (is_the_row),
    generation bigint  NOT NULL DEFAULT 0
);
INSERT INTO outbox.topic_generation DEFAULT VALUES;

-- With the owner's rights: whoever may change a topic may do no more to the number than this.
CREATE FUNCTION outbox.count_topic_change() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE outbox.topic_generation SET generation = generation + 1;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION outbox.count_topic_change() FROM PUBLIC;
CREATE TRIGGER topic_is_changed AFTER UPDATE ON outbox.topic FOR EACH ROW
    WHEN (OLD.partitions IS DISTINCT FROM NEW.partitions OR OLD.selector IS DISTINCT FROM NEW.selector
          OR OLD.paused_at IS DISTINCT FROM NEW.paused_at OR OLD.pause_when_grown <> NEW.pause_when_grown
          OR OLD.skip_ahead <> NEW.skip_ahead
          OR (NEW.pause_when_grown AND OLD.partitions_in_kafka IS DISTINCT FROM NEW.partitions_in_kafka))
    EXECUTE FUNCTION outbox.count_topic_change();
CREATE TRIGGER topic_is_deleted AFTER DELETE ON outbox.topic FOR EACH ROW
    EXECUTE FUNCTION outbox.count_topic_change();

-- By this generation the relay publishes, or by a later one: nothing that it published by an older one is unacknowledged.
ALTER TABLE outbox.lease ADD topics_seen bigint NOT NULL DEFAULT 0;
