"""An index of the dead letters of consumer groups."""

from __future__ import annotations

from outbox.adapters.django.upgrading import migration_to

Migration = migration_to("0002", after="0001_schema")
