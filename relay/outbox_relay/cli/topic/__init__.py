"""`outbox topic` creates and registers topics."""
