"""Debezium as a peer: its connector for PostgreSQL with the outbox event router, in Kafka Connect."""
