"""What a database keeps, for its figures: what is held, alarms that were not pushed, disk space."""

from __future__ import annotations

from typing import Any, NamedTuple

import psycopg

from outbox.statements import Statements

STATEMENTS = Statements("outbox_relay/monitoring/kept.sql")


class HeldTopic(NamedTuple):
    """Messages of a topic that fail, or wait for a hold; the age of the oldest in seconds."""

    topic: str
    messages: int
    oldest: float


class Kept(NamedTuple):
    """What is kept; ages in seconds."""

    held: list[HeldTopic]
    unsent: float
    """Since when the oldest alarm waits to be pushed; 0: none does."""
    oldest: float
    """The age of the oldest message; 0 if there is no message."""
    inbox_bytes: float
    inbox_oldest: float
    """The age of the oldest day of the inbox; 0 if there is no day, or only today."""


def read(conn: psycopg.Connection[Any]) -> Kept:
    """Read it; needs no more than the role outbox_reader."""
    held = [HeldTopic(*row) for row in conn.execute(STATEMENTS["held"]).fetchall()]
    (unsent,) = conn.execute(STATEMENTS["unsent"]).fetchone() or (None,)
    (oldest,) = conn.execute(STATEMENTS["oldest"]).fetchone() or (None,)
    size, inbox_oldest = conn.execute(STATEMENTS["inbox"]).fetchone() or (0.0, None)
    return Kept(held, unsent or 0.0, oldest or 0.0, size, max(inbox_oldest or 0.0, 0.0))
