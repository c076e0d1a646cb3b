"""The whole schema: messages, publications, events, lanes, topics, partitions, views, roles and consumers."""

from __future__ import annotations

from outbox.adapters.django.upgrading import migration_to

Migration = migration_to("0001")
