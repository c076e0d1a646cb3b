"""The app: `INSTALLED_APPS = [..., "outbox.adapters.django"]`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import Tags, register

from outbox.adapters.django.checks import check_databases, check_schema


class OutboxAppConfig(AppConfig):  # type: ignore[misc]
    """It has no models; its label cannot be that of an app of the host's called outbox."""

    name = "outbox.adapters.django"
    label = "outbox_kafka"
    verbose_name = "Transactional outbox"

    def ready(self) -> None:
        """Register the system checks; those that ask a database run by `check --database` and `migrate` only."""
        register(check_databases)
        register(check_schema, Tags.database)
