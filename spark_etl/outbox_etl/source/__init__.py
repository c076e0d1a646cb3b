"""The outbox in PostgreSQL: closed windows of its rows."""
