"""Roles, logins and settings that cannot harm each other."""

from __future__ import annotations

from outbox_migrations.sql_files import run

revision = "0004"
down_revision: str | None = "0003"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Run one script for each subject, in the transaction of the whole upgrade."""
    run("0004_rebinding.sql")
    run("0004_rebinding_tables.sql")
    run("0004_runs.sql")
    run("0004_consumer_operations.sql")
    run("0004_consumer_groups.sql")
    run("0004_transitions.sql")
    run("0004_ids.sql")
    run("0004_consumer_group_roles.sql")
    run("0004_subject_keys.sql")
    run("0004_holds.sql")
    run("0004_order_headers.sql")
    run("0004_batches.sql")
    run("0004_times.sql")
    run("0004_grants.sql")


def downgrade() -> None:
    """Refuse: the outbox is only upgraded."""
    raise RuntimeError(
        "the outbox has no downgrade: drop the schema 'outbox' by hand to remove it with all messages"
    )
