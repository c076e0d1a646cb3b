"""`outbox tail` reads a topic from Kafka."""
