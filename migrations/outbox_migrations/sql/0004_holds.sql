-- A hold of one partition: its messages wait, and the topic's others flow. Like a topic's it has a row for each lane.

ALTER TABLE outbox.parked_key ADD COLUMN partition integer;
COMMENT ON COLUMN outbox.parked_key.partition IS 'The partition whose messages wait; null: a topic, a key or a message waits.';
