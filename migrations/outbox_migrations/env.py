"""Alembic's entry: prints the outbox's migrations as SQL. `outbox_migrations.api` runs them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from outbox_migrations.env_names import SCHEMA, VERSION_TABLE

context.configure(
    dialect_name="postgresql",
    literal_binds=True,
    version_table=VERSION_TABLE,
    version_table_schema=SCHEMA,
)
with context.begin_transaction():
    context.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
    context.run_migrations()
