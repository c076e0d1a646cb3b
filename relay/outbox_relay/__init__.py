"""The service that publishes the outbox to Kafka, and the `outbox` command."""
