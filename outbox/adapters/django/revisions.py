"""The aliases that have the outbox's schema, and the revisions that the app's migrations bring."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings

REVISIONS = ("0001", "0002", "0003", "0004")
"""Of `outbox_migrations`, one migration of the app for each; written here, since alembic is not in a web process."""


def outbox_aliases() -> Sequence[str]:
    """The aliases of `OUTBOX_DATABASES`, `["default"]` where it is not set."""
    aliases: Sequence[str] = getattr(settings, "OUTBOX_DATABASES", ["default"])
    return aliases
