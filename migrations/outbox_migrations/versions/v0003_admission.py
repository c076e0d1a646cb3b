"""A trigger on INSERT without a condition that PostgreSQL reads for every statement, and cheaper message ids."""

from __future__ import annotations

from outbox_migrations.sql_files import run

revision = "0003"
down_revision: str | None = "0002"
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Replace the trigger, in the transaction of the whole upgrade."""
    run("0003_admission.sql")


def downgrade() -> None:
    """Refuse: the outbox is only upgraded."""
    raise RuntimeError(
        "the outbox has no downgrade: drop the schema 'outbox' by hand to remove it with all messages"
    )
