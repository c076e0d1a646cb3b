"""`outbox status` shows whether the outbox is healthy."""
