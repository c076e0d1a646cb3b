"""A Kafka-compatible transactional outbox on PostgreSQL."""
