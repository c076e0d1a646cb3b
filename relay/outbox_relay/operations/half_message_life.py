"""Reads everything that explains one half message: its row, its audit, its group, who holds it, what is wrong."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from outbox_relay.operations import groups, half_messages, locker, messages
from outbox_relay.operations.filters import Filters
from outbox_relay.operations.groups import Alarm, RegisteredGroup
from outbox_relay.operations.locker import Locker
from outbox_relay.operations.messages import Life, Row
from outbox_relay.text.errors import OperatorError


@dataclass(frozen=True)
class HalfMessageLife:
    """One half message as of one moment by the database's clock."""

    half: Row
    life: Life
    group: RegisteredGroup
    alarms: list[Alarm]
    locker: Locker | None
    now: datetime

    @property
    def overdue(self) -> bool:
        """Whether it is due and no checker has got to it."""
        due: datetime | None = self.half["due_at"]
        return due is not None and (self.now - due).total_seconds() > half_messages.OVERDUE_S


def read(conn: psycopg.Connection[Any], identity: tuple[int | None, uuid.UUID | None]) -> HalfMessageLife:
    """Read one half message's life; needs no more than the role outbox_reader.

    Args:
        conn: an autocommit connection that is in no transaction; it is read-only from then on.
        identity: its id or its message id.

    Raises:
        OperatorError: there is no such message, or it never was a half message.
    """
    half = half_messages.get(conn, identity)
    life = messages.life(conn, Filters(id=half["id"], message_id=half["message_id"]))
    if life is None:
        raise OperatorError(f"message {half['message_id']} has just been dropped with its partition")
    require_half(half, life.events)
    return around(conn, half, life)


def around(conn: psycopg.Connection[Any], half: Row, life: Life) -> HalfMessageLife:
    """Read what is around a half message whose life is known: its group, what is wrong, who holds it."""
    return HalfMessageLife(
        half=half,
        life=life,
        group=groups.find(conn, half["producer_group"]),
        alarms=groups.alarms(conn, half["producer_group"]),
        locker=locker.find(conn, half["id"]) if half["state"] in half_messages.STATES else None,
        now=half_messages.now(conn),
    )


def require_half(half: Row, events: list[Row]) -> None:
    """Refuse a message that was sent, not prepared.

    Raises:
        OperatorError: with the command that shows it.
    """
    if not any(event["from_state"] is None and event["to_state"] == "UNKNOWN" for event in events):
        raise OperatorError(
            f"message {half['message_id']} is not a half message: it was sent as COMMITTED, so it has no checks\n"
            f"show it: outbox message show {half['id']}"
        )
