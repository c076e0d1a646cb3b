"""`outbox relay` runs the relay."""
