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
        kind: `message`, `key`, `partition`, `topic` or `lane`, as `outbox holds ls` has it.
        topic: of their messages; None for a lane that waits for Kafka.
        error: of the oldest; it begins with the code.
        holds: how many there are.
        lanes: those that are held as such; empty for other kinds.
        since: when the oldest began.
        age_seconds: how long ago that was.
        waiting: how many messages wait behind those that fail; of a topic and of a lane all.
    """

    kind: str
    topic: str | None
    error: str
    holds: int
    lanes: list[int]
    since: datetime
    age_seconds: float
    waiting: int

    @property
    def code(self) -> str:
        """The code of the error."""
        return self.error.partition(":")[0]

    @property
    def place(self) -> str:
        """What is held, or the topic of it."""
        if self.lanes:
            return f"lane{'s' if len(self.lanes) > 1 else ''} {', '.join(map(str, self.lanes))}"
        return f"topic {printable(self.topic or '')}"

    @property
    def command(self) -> str:
        """List the holds, each with the commands that repair it."""
        topic = "" if self.topic is None else f" --topic {quote(printable(self.topic))}"
        return f"outbox holds ls{topic} --error {quote(printable(self.code))}"


def read(conn: psycopg.Connection[Any]) -> list[HoldGroup]:
    """Read all holds, the oldest first; needs no more than the role outbox_reader.

    What waits behind a lane is not counted here: it is the lane's backlog.
    """
    with conn.cursor(row_factory=class_row(HoldGroup)) as cursor:
        return cursor.execute(read_statement("groups", keys="true", topics="true", lanes="true")).fetchall()
