"""`outbox failover` lists servers that took over, and the messages that only Kafka has."""
