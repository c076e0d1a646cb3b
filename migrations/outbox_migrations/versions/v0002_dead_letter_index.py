"""An index of the dead letters of consumer groups, for `outbox dlq ls` and `outbox dlq summary`."""

from __future__ import annotations

from outbox_migrations.sql_files import run

revision = "0002"
down_revision: str | None = "0001"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Create the index, in the transaction of the whole upgrade."""
    run("0002_dead_letters.sql")


def downgrade() -> None:
    """Refuse: the outbox is only upgraded."""
    raise RuntimeError(
        "the outbox has no downgrade: drop the schema 'outbox' by hand to remove it with all messages"
    )
