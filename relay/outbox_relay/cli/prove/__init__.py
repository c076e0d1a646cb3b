"""`outbox prove`."""
