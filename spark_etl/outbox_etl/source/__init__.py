"""The outbox in PostgreSQL: closed windows of its rows, and the certificates written there."""
