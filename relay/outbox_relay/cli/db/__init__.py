"""`outbox db` creates, upgrades and checks the schema."""
