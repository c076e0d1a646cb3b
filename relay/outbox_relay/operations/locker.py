"""Names the transaction that holds a half message: while it runs, no other transaction decides."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements
from outbox_relay.text.formatting import cell, printable, seconds

STATEMENTS = Statements("outbox_relay/operations/half_message_life.sql")


@dataclass(frozen=True)
class Locker:
    """An open transaction; what another user's session does is shown to members of pg_read_all_stats only."""

    pid: int | None
    gid: str | None
    prepared: datetime | None
    usename: str | None
    application_name: str | None
    address: str | None
    state: str | None
    xact_start: datetime | None
    age: float | None

    def describe(self) -> str:
        """Return who it is, and since when."""
        since = self.xact_start or self.prepared
        when = "" if since is None else f" since {cell(since)} ({seconds(self.age)})"
        if self.gid is not None:
            return f"a prepared transaction{when}, {printable(self.gid)!r}"
        who = [f"pid {self.pid}"]
        who += [printable(part) for part in (self.application_name, self.usename, self.address) if part]
        return f"a running local transaction{when}, {', '.join(who)}"

    def ending(self) -> str:
        """How an operator ends it."""
        if self.gid is not None:
            return f"ROLLBACK PREPARED '{printable(self.gid)}'"
        return f"pg_terminate_backend({self.pid})"


def find(conn: psycopg.Connection[Any], id_: int) -> Locker | None:
    """The transaction that holds this message's row now, or None: the row is free, or it may not be known.

    The role outbox_reader may not read who locks a row; for it this is always None.

    Args:
        conn: an autocommit connection that is in no transaction.
        id_: the message's id.
    """
    for name in ("locker", "sharing_locker"):
        try:
            with conn.cursor(row_factory=class_row(Locker)) as cursor:
                found = cursor.execute(STATEMENTS[name], {"id": id_}).fetchone()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InternalError_):
            return None
        if found is not None:
            return found
    return None
