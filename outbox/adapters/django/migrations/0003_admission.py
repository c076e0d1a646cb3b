"""A cheaper trigger on INSERT, and cheaper message ids."""

from __future__ import annotations

from outbox.adapters.django.upgrading import migration_to

Migration = migration_to("0003", after="0002_dead_letter_index")
