"""The schema of the outbox: alembic, with its own version table in its own PostgreSQL schema."""
