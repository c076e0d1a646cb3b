"""Where one message is kept, and what is proven of the warehouses that should hold it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from outbox.statements import Statements
from outbox_relay.operations.messages import Row
from outbox_relay.text.formatting import cell, many, printable

STATEMENTS = Statements("outbox_relay/operations/archive.sql")


@dataclass(frozen=True)
class Archive:
    """The partition of the history that a message is in, and the newest certificate of each warehouse about it."""

    partition: Row | None
    certificates: Sequence[Row]

    @property
    def kept(self) -> str | None:
        """Where it is kept, for people."""
        if self.partition is None:
            return None
        return f"{printable(self.partition['name'])}, ids {self.partition['lower']} to {self.partition['upper'] - 1}"

    def document(self) -> dict[str, Any]:
        """Return it for machines."""
        return {"partition": self.partition, "certificates": [*self.certificates]}


def read(conn: psycopg.Connection[Any], message: Row) -> Archive:
    """Read it; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection that is in no transaction.
        message: its row, as in outbox.message_status.
    """
    with conn.cursor(row_factory=dict_row) as cursor:
        partition = cursor.execute(STATEMENTS["partition"], {"id": message["id"]}).fetchone()
        found = cursor.execute(STATEMENTS["certificates"], {"xid": str(message["xid"])}).fetchall()
    return Archive(partition, found)


def sentence(certificate: Row) -> str:
    """Return what a certificate proves, for people."""
    proven = (
        many(certificate["problems"], "problem") + " in its window"
        if certificate["problems"]
        else "proven to hold it"
    )
    window = f"transactions {certificate['window_lo']} to {certificate['window_hi']}"
    return f"warehouse {printable(certificate['target'])}: {proven}, at {cell(certificate['verified_at'])} ({window})"
