"""faststream-outbox: its relay to Kafka as a process, its table and its statements."""
