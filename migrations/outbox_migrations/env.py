"""Alembic's entry: runs the outbox's migrations in the outbox's own schema, beside any of the host's."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from outbox_migrations.env_names import SCHEMA, VERSION_TABLE


def run_offline() -> None:
    """Print the SQL instead of running it."""
    context.configure(
        dialect_name="postgresql",
        literal_binds=True,
        version_table=VERSION_TABLE,
        version_table_schema=SCHEMA,
    )
    with context.begin_transaction():
        context.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        context.run_migrations()


def run_online() -> None:
    """Run on the connection that the caller gave; one transaction for all steps."""
    connection: sa.Connection = context.config.attributes["connection"]
    context.configure(
        connection=connection,
        version_table=VERSION_TABLE,
        version_table_schema=SCHEMA,
        # A host that autogenerates with include_schemas must not see our tables, nor we its.
        include_name=lambda name, type_, parents: type_ != "schema" or name == SCHEMA,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run_offline()
else:
    run_online()
