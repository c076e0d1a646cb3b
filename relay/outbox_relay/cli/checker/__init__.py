"""`outbox checker` runs the checker."""
