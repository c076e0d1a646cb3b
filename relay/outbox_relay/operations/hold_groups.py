"""Sums up what is held, for status and metrics: all holds by kind, topic and error."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from shlex import quote
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox_relay.operations.holds import read_statement
from outbox_relay.text.formatting import printable


@dataclass
class HoldGroup:
    """The holds of one kind, topic and code of an error.

    Attributes:
        kind: `message`, `key`, `partition` or `topic`, as `outbox holds ls` has it.
        topic: of their messages.
        error: of the oldest; it begins with the code.
        holds: how many there are.
        since: when the oldest began.
        age_seconds: how long ago that was.
        waiting: how many messages wait behind those that fail; of a partition and of a topic all.
    """

    kind: str
    topic: str
    error: str
    holds: int
    since: datetime
    age_seconds: float
    waiting: int

    @property
    def code(self) -> str:
        """The code of the error."""
        return self.error.partition(":")[0]

    @property
    def place(self) -> str:
        """The topic of what is held."""
        return f"topic {printable(self.topic)}"

    @property
    def unpublished(self) -> int:
        """How many messages are not published because of them: those that fail, and those behind."""
        return self.waiting + (self.holds if self.kind in ("key", "message") else 0)

    @property
    def command(self) -> str:
        """List the holds, each with the commands that repair it."""
        return f"outbox holds ls --topic {quote(printable(self.topic))} --error {quote(printable(self.code))}"


def read(conn: psycopg.Connection[Any]) -> list[HoldGroup]:
    """Read all holds, the oldest first; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(HoldGroup)) as cursor:
        return cursor.execute(read_statement("groups", keys="true", topics="true")).fetchall()
