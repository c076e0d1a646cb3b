"""Which role of the database each command needs: its help names it, and a refusal states how to grant it.

docs/operations/roles.md describes the roles; a test runs each command as a login that has this one and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

OWNER = "the schema's owner"
NONE_NEEDED = ""
"""The command opens no database, or one of its own."""

READER, OPERATOR = "outbox_reader", "outbox_operator"

ROLES: Mapping[str, str] = {
    "dev": NONE_NEEDED,
    "up": NONE_NEEDED,
    "env": NONE_NEEDED,
    "down": NONE_NEEDED,
    "demo": NONE_NEEDED,
    "shop": NONE_NEEDED,
    "db upgrade": OWNER,
    "db check": READER,
    "db sql": NONE_NEEDED,
    "db debezium": OWNER,
    "db partitions": READER,
    "topic create": OPERATOR,
    "topic register": OPERATOR,
    "topic alter": OPERATOR,
    "topic repartition": OPERATOR,
    "topic pause": OPERATOR,
    "topic resume": OPERATOR,
    "topic on-growth": OPERATOR,
    "topic ls": READER,
    "topic show": READER,
    "group set": OPERATOR,
    "group ls": READER,
    "group show": READER,
    "config show": NONE_NEEDED,
    "config check": NONE_NEEDED,
    "relay run": "outbox_relay",
    "relay ls": READER,
    "relay drain": OPERATOR,
    "checker run": "outbox_checker",
    "checker check": "outbox_checker",
    "status": READER,
    "console": READER,
    "doctor": READER,
    "prove": NONE_NEEDED,
    "metrics ls": NONE_NEEDED,
    "metrics alerts": NONE_NEEDED,
    "metrics dashboard": NONE_NEEDED,
    "metrics serve": READER,
    "message send": "outbox_producer",
    "message ls": READER,
    "message show": READER,
    "message cancel": OPERATOR,
    "holds ls": READER,
    "holds show": READER,
    "holds release": OPERATOR,
    "holds skip": OPERATOR,
    "holds dead": OPERATOR,
    "failover ls": READER,
    "failover scan": OPERATOR,
    "dlq ls": READER,
    "dlq summary": READER,
    "dlq show": READER,
    "dlq export": "outbox_consumer",
    "dlq redrive": OPERATOR,
    "dlq discard": OPERATOR,
    "dlq hold": OPERATOR,
    "consumers ls": READER,
    "consumers show": READER,
    "consumers bind": OPERATOR,
    "consumers unbind": OPERATOR,
    "consumers pause": OPERATOR,
    "consumers resume": OPERATOR,
    "consumers delete": OPERATOR,
    "consumers reset": OPERATOR,
    "consumers replay": "outbox_consumer",
    "key ls": OPERATOR,
    "key destroy": OPERATOR,
    "key renew": OPERATOR,
    "key rewrap": OPERATOR,
    "inbox ls": READER,
    "inbox drop": OWNER,
    "tail": NONE_NEEDED,
    "tx ls": READER,
    "tx show": READER,
    "tx explain": READER,
    "tx check": OPERATOR,
    "tx commit": OPERATOR,
    "tx rollback": OPERATOR,
    "etl run": "outbox_etl",
    "etl backfill": "outbox_etl",
    "etl marts": NONE_NEEDED,
    "etl status": "outbox_etl",
    "etl reconcile": "outbox_etl",
    "etl maintain": NONE_NEEDED,
    "history ls": READER,
    "history drop": OWNER,
}
"""By the words that call the command."""


def role_of(ctx: click.Context) -> str:
    """Return the role that a command needs; empty: it opens no database."""
    words: list[str] = []
    here: click.Context | None = ctx
    while here is not None and here.parent is not None:
        words.insert(0, here.info_name or "")
        here = here.parent
    return ROLES.get(" ".join(words), NONE_NEEDED)


def name_roles(command: click.Command, words: str) -> None:
    """Name the role in the help of a command, or of each command of a group; its epilog is in the reference, too."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            name_roles(inner, f"{words} {name}")
    elif role := ROLES.get(words):
        command.epilog = (
            f"Needs {'the role ' * (role != OWNER)}{role} in the database: docs/operations/roles.md"
        )


@contextmanager
def needed(ctx: click.Context) -> Iterator[None]:
    """State which role the command needs, for errors about a right that its login lacks."""
    role, dsn = role_of(ctx), ctx.params.get("dsn")
    if not role or not isinstance(dsn, str):
        yield
        return
    from outbox_relay.database import rights  # noqa: PLC0415  (loads the driver)

    with rights.needing(role, dsn):
        yield


def repair(error: Exception) -> str | None:
    """See `outbox_relay.database.rights.repair`."""
    from outbox_relay.database import rights  # noqa: PLC0415  (loads the driver)

    return rights.repair(error)
