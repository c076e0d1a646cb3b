"""System checks: what would only be noticed when the first message is sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import DatabaseError, connections

from outbox.adapters.django.revisions import REVISIONS, outbox_aliases
from outbox.adapters.django.sending import backend_fault
from outbox.extras import install_line
from outbox.statements import load

_SQL = load("django.sql")


def check_databases(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """Check the settings of the aliases; no database is asked."""
    aliases = outbox_aliases()
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        return [
            Error(
                f"OUTBOX_DATABASES is {aliases!r}.",
                hint='Give a list of aliases: OUTBOX_DATABASES = ["default"].',
                id="outbox.E001",
            )
        ]
    found = []
    for alias in aliases:
        if alias not in connections.settings:
            known = ", ".join(map(repr, connections.settings))
            found.append(
                Error(
                    f"OUTBOX_DATABASES names {alias!r}, which is not in DATABASES.",
                    hint=f"Name some of {known}.",
                    id="outbox.E001",
                )
            )
            continue
        fault = backend_fault(connections[alias])
        if fault is not None:
            found.append(
                Error(
                    f"A database with the outbox {fault.partition('; ')[0]}.",
                    hint=f"Use {fault.partition('allowed: ')[2]}, or leave it out of OUTBOX_DATABASES.",
                    id="outbox.E002",
                )
            )
            continue
        found += _pitfalls(alias, connections.settings[alias])
    return found


def _pitfalls(alias: str, given: dict[str, Any]) -> list[CheckMessage]:
    """Warn of connections that are kept and may be dead or another session's."""
    found = []
    if given["CONN_MAX_AGE"] != 0 and not given["CONN_HEALTH_CHECKS"]:
        found.append(
            Warning(
                f"DATABASES[{alias!r}] keeps connections (CONN_MAX_AGE) and does not check them, so the first "
                "transaction after a restart of PostgreSQL, or behind a pooler that closed it, fails with its message.",
                hint="Set CONN_HEALTH_CHECKS = True for it.",
                id="outbox.W001",
            )
        )
    options = given["OPTIONS"]
    if options.get("prepare_threshold") is not None:
        found.append(
            Warning(
                f"DATABASES[{alias!r}] prepares statements (OPTIONS['prepare_threshold']), which fails behind a pooler "
                "that gives each transaction another session, such as PgBouncer before 1.21 in transaction mode.",
                hint="Leave prepare_threshold out behind such a pooler; else add 'outbox.W002' to "
                "SILENCED_SYSTEM_CHECKS.",
                id="outbox.W002",
            )
        )
    return found


def check_schema(
    app_configs: Any = None, databases: Sequence[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Check that the schema is of this version, and that the alias may send; asks the databases that are named."""
    found: list[CheckMessage] = []
    for alias in databases or ():
        if alias in outbox_aliases() and backend_fault(connections[alias]) is None:
            found += _check_database(alias)
    return found


def _check_database(alias: str) -> list[CheckMessage]:
    try:
        with connections[alias].cursor() as cursor:
            cursor.execute(_SQL["exists"])
            exists = cursor.fetchone()[0]
            cursor.execute(_SQL["revision"] if exists else _SQL["none"])
            revision, oldest = cursor.fetchone() or (None, None)
            cursor.execute(_SQL["rights"] if exists else _SQL["none"])
            may_send = cursor.fetchone()[0]
    except DatabaseError as error:
        return [
            Error(
                f"The outbox of DATABASES[{alias!r}] cannot be read: {error}".strip(),
                hint="Grant its user a role of the outbox: GRANT outbox_producer TO <that role>.",
                id="outbox.E004",
            )
        ]
    is_newer = revision is not None and revision > REVISIONS[-1]
    if is_newer and (oldest is None or oldest > REVISIONS[-1]):
        return [
            Error(
                f"The outbox schema in DATABASES[{alias!r}] is {revision}, newer than the {REVISIONS[-1]} that this "
                f"version knows; it works with {oldest or revision} or newer.",
                hint=f"Upgrade the software: {install_line('django', upgrade=True)}.",
                id="outbox.E003",
            )
        ]
    if not is_newer and revision != REVISIONS[-1]:
        return [
            Warning(
                f"The outbox schema in DATABASES[{alias!r}] is {revision or 'missing'}, this version needs "
                f"{REVISIONS[-1]}.",
                hint=f"Run: manage.py migrate outbox_kafka --database {alias}, or: manage.py outbox db upgrade.",
                id="outbox.W003",
            )
        ]
    if not may_send:
        return [
            Error(
                f"The user of DATABASES[{alias!r}] may not send messages.",
                hint="Grant it: GRANT outbox_producer TO <that role>.",
                id="outbox.E004",
            )
        ]
    return []
