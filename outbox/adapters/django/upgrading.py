"""The operation of the app's migrations: brings the outbox's schema in the transaction of `manage.py migrate`."""

from __future__ import annotations

from typing import Any

from django.db import migrations
from django.db.migrations.operations.base import Operation

from outbox.adapters.django.revisions import REVISIONS, outbox_aliases
from outbox.adapters.django.sending import backend_fault
from outbox.errors import ConfigurationError
from outbox.extras import needs


class UpgradeOutbox(Operation):  # type: ignore[misc]
    """Upgrades the schema to a revision, in the databases of `OUTBOX_DATABASES`; one that is newer stays as it is.

    It runs what `outbox db upgrade` runs, and notes the same revision: either may run first, or alone.
    """

    reduces_to_sql = True
    reversible = False

    def __init__(self, revision: str) -> None:
        self.revision = revision

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Change no model: the outbox has none."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Run the scripts, or hand them to `manage.py sqlmigrate`."""
        wrapper = schema_editor.connection
        if wrapper.alias not in outbox_aliases():
            return
        fault = backend_fault(wrapper)
        if fault is not None:
            raise ConfigurationError(f"OUTBOX_DATABASES: {fault}")
        with needs("relay", "alembic", "sqlalchemy"):
            from outbox_migrations import api  # noqa: PLC0415  (a web process needs no alembic)
        place = REVISIONS.index(self.revision)
        if schema_editor.collect_sql:
            before = REVISIONS[place - 1] if place else None
            schema_editor.collected_sql += [
                f"{script.rstrip().rstrip(';')};" for script in api.scripts(before, self.revision)
            ]
        else:
            api.upgrade_in(wrapper.connection, self.revision)

    def describe(self) -> str:
        """Name it, for `manage.py migrate --plan`."""
        return f"Upgrade the schema outbox to revision {self.revision}"


def migration_to(revision: str, after: str | None = None) -> type[Any]:
    """Make the migration of a revision.

    Args:
        revision: what it brings.
        after: the migration before it.
    """
    return type(
        "Migration",
        (migrations.Migration,),
        {
            "dependencies": [("outbox_kafka", after)] if after else [],
            "initial": after is None,
            "operations": [UpgradeOutbox(revision)],
        },
    )
