"""Reads which keys are parked, at what message, since when, and how many messages are held behind it."""

from __future__ import annotations

import uuid
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from outbox.statements import Statements
from outbox_relay.text.formatting import bytes_for_json, cell, many, printable

STATEMENTS = Statements("outbox_relay/operations/parked_keys.sql")
MOST = 100
"""Parked keys that are listed; the oldest first."""
_REPAIRS = {
    "LEADER_NOT_AVAILABLE": "start a broker that has the partition",
    "NOT_ENOUGH_REPLICAS": "start brokers that have replicas of it, or lower its min.insync.replicas",
}
"""What makes a topic available again, by the code of its error."""


@dataclass(frozen=True)
class ParkedKey:
    """A parked key; `id` and `message_id` are of the message that fails; Kafka may have it where it is `in_doubt`.

    `is_topic`: its whole topic is parked in this lane, because it is paused or Kafka does not take it; then the message
    is the one that is tried first, and `held` counts all of them. `has_relay`: whether a living relay has its lane.
    """

    lane: int
    topic: str
    queue: int | None
    order_key: bytes | None
    id: int
    message_id: uuid.UUID | None
    error: str
    since: datetime
    tries: int
    requested_at: datetime | None
    is_topic: bool
    is_draining: bool
    in_doubt: bool
    held: int
    has_relay: bool

    @property
    def being_tried(self) -> str:
        """What comes of the retry that is under way, or was when its relay ended."""
        if self.has_relay and self.is_topic:
            return "its topic is being tried again now; if it fails again: outbox lane ls"
        if self.has_relay:
            return "its key is being tried again now; if it fails again: outbox lane ls"
        return "the relay that was trying its key again has ended; the next one goes on with that: outbox relay run"

    @property
    def place(self) -> str:
        """What is parked: a topic with a key or a queue, or all of it."""
        if self.is_topic:
            return f"topic {printable(self.topic)}, all of it"
        if self.queue is not None:
            return f"topic {self.topic}, queue {self.queue}"
        return f"topic {self.topic}" + (f", key {cell(self.order_key)}" if self.order_key is not None else "")

    def hold_up(self, id_: int) -> str:
        """State what this means for one of its messages: the one that fails, or one behind it."""
        if self.is_topic:
            return f"waits, with all of its topic: {printable(self.error)}"
        if id_ == self.id:
            return f"cannot be published, and holds up {many(self.held, 'message')} of its key: {printable(self.error)}"
        return f"held behind message {self.id}, which cannot be published: {printable(self.error)}"

    def document(self) -> dict[str, Any]:
        """Return it for machines, with what to do about it."""
        return {**asdict(self), "order_key": bytes_for_json(self.order_key), "repair": self.repair()}

    def repair(self) -> list[str]:
        """Return what an operator can do about it, best first."""
        if self.is_topic:
            if self.error.startswith("TOPIC_PAUSED"):
                return [f"let it go on: outbox topic resume {self.topic}"]
            name = printable(self.topic)
            if self.error.startswith("UNKNOWN_TOPIC_OR_PART"):
                return [f"create it, and the relay goes on within a minute: outbox topic create {name}"]
            repair = _REPAIRS.get(self.error.partition(":")[0], "repair the topic")
            return [f"{repair}; the relay asks again within a minute, or now: outbox topic register {name}"]
        skip = "--may-be-published " if self.in_doubt else ""
        return [
            f"repair the cause, then: outbox message retry {self.id} --reason TEXT",
            f"or give it up: outbox message skip {self.id} {skip}--reason TEXT",
        ]


def everything(conn: psycopg.Connection[Any], most: int = MOST) -> list[ParkedKey]:
    """Return the parked keys, oldest first; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(ParkedKey)) as cursor:
        return cursor.execute(_with_columns("all"), {"most": most}).fetchall()


def of_message(conn: psycopg.Connection[Any], id_: int) -> ParkedKey | None:
    """Return the parked key of a message that fails or is held; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(ParkedKey)) as cursor:
        return cursor.execute(_with_columns("of_message"), {"id": id_}).fetchone()


def request_drains(conn: psycopg.Connection[Any], topic: str) -> int:
    """Ask for a retry of a topic's parked keys; return how many. Needs the role outbox_operator.

    The relay tries them within about a second, one after the other.
    """
    return conn.execute(STATEMENTS["request"], {"topic": topic}).rowcount


def _with_columns(name: str) -> sql.Composed:
    return sql.SQL(STATEMENTS[name]).format(columns=sql.SQL(STATEMENTS["columns"]))
