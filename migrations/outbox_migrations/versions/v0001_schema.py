"""The whole schema: messages, publications, events, lanes, topics, partitions, views, roles and consumers."""

from __future__ import annotations

from outbox_migrations.sql_files import run

revision = "0001"
down_revision: str | None = None
branch_labels: str | None = None
depends_on: str | None = None


def upgrade() -> None:
    """Create the schema's objects, in the order in which they need each other."""
    for name in (
        "0001_version.sql",
        "0001_schema.sql",
        "0001_parked_keys.sql",
        "0001_failover.sql",
        "0001_topics.sql",
        "0001_cloudevents.sql",
        "0001_admission.sql",
        "0001_guards.sql",
        "0001_sending.sql",
        "0001_debezium.sql",
        "0001_partitions.sql",
        "0001_views.sql",
        "0001_roles.sql",
        "0001_inbox.sql",
        "0001_dead_letter_topics.sql",
        "0001_inbox_roles.sql",
        "0001_subject_keys.sql",
        "0001_subject_key_roles.sql",
    ):
        run(name)


def downgrade() -> None:
    """Refuse: it would destroy messages that are not yet published."""
    raise RuntimeError(
        "the outbox has no downgrade: drop the schema 'outbox' by hand to remove it with all messages"
    )
