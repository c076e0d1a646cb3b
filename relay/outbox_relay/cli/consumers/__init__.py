"""The `outbox consumers` commands."""
