-- What operators and members of consumer groups state of each other, beside positions.

ALTER TABLE outbox.consumer_member ADD COLUMN full_keys integer NOT NULL DEFAULT 0;
COMMENT ON COLUMN outbox.consumer_member.full_keys IS
    'held keys whose later messages wait in Kafka, because as many wait here as may';
