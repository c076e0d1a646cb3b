"""Roles, logins and settings that cannot harm each other."""

from __future__ import annotations

from outbox.adapters.django.upgrading import migration_to

Migration = migration_to("0004", after="0003_admission")
