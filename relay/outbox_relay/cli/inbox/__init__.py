"""`outbox inbox` lists the days of a consumer's inbox, and drops those that Kafka cannot deliver again."""
