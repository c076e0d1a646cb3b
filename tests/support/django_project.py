"""A project of Django for tests: the app of the outbox, databases of the test, and a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
from django.conf import settings
from django.db import connections, models
from psycopg.conninfo import conninfo_to_dict

if not settings.configured:
    settings.configure(DATABASES={}, INSTALLED_APPS=["outbox.adapters.django"], USE_TZ=True)
    django.setup()


class OrderOfDjango(models.Model):  # type: ignore[misc]
    """A row of the contract of adapters."""

    id = models.TextField(primary_key=True)
    state = models.TextField()

    class Meta:
        """Of an application that is not installed."""

        app_label = "contract"
        db_table = "orders"


def alias_of(dsn: str, **options: Any) -> dict[str, Any]:
    """The settings of a database."""
    names = {"dbname": "NAME", "user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT"}
    found = {names[name]: value for name, value in conninfo_to_dict(dsn).items() if name in names}
    return {"ENGINE": "django.db.backends.postgresql", "OPTIONS": options, **found}


@contextmanager
def databases(**given: dict[str, Any]) -> Iterator[None]:
    """Have aliases with these settings."""
    for wrapper in connections.all(initialized_only=True):
        del connections[wrapper.alias]  # that of no database, which Django made
    connections.settings = connections.configure_settings(given)
    try:
        yield
    finally:
        for alias in given:
            connections[alias].close()
            del connections[alias]
