"""Reads and changes `outbox.producer_group`: how a group's half messages are asked about, and what becomes of them.

Rows are written by the library's own operations (`outbox.operations.groups`), with its defaults and its limits.

A group's type never changes: its producers were admitted by it. A group that is not registered has the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.drivers import psycopg_sync
from outbox.errors import InvalidGroupError
from outbox.operations import groups
from outbox.operations.groups import GROUP_TYPES, POLICIES, ProducerGroup, require_consistent
from outbox.operations.topics import MessageType
from outbox.statements import Statements
from outbox_relay.operations.group_errors import GroupError
from outbox_relay.operations.half_messages import OVERDUE_S
from outbox_relay.text import durations

STATEMENTS = Statements("outbox_relay/operations/groups.sql")
__all__ = [
    "POLICIES",
    "SETTINGS",
    "TYPES",
    "Alarm",
    "HalfMessageCounts",
    "ProducerGroup",
    "RegisteredGroup",
    "alarms",
    "change",
    "everything",
    "find",
    "half_message_counts",
]

TYPES = tuple(map(str, GROUP_TYPES))
SETTINGS = ProducerGroup._fields[2:]
"""What can be changed of a group: everything but its name and its type."""


@dataclass(frozen=True)
class RegisteredGroup:
    """A producer group as operators see it: the library's settings, and what only operators set."""

    settings: ProducerGroup
    callback: dict[str, Any] | None = None
    role: str | None = None
    registered_at: datetime | None = None

    @property
    def name(self) -> str:
        """The group's name."""
        return self.settings.name

    @property
    def registered(self) -> bool:
        """Whether it has a row of its own; if not, the settings are the library's defaults."""
        return self.registered_at is not None


@dataclass(frozen=True)
class Alarm:
    """What a checker reports about a group; age and seen in seconds: since it was raised, and last confirmed."""

    producer_group: str
    kind: str
    detail: str
    since: datetime
    seen_at: datetime
    age: float
    seen: float


@dataclass(frozen=True)
class HalfMessageCounts:
    """A group's half messages that somebody has to decide; the oldest in seconds."""

    producer_group: str
    undecided: int = 0
    overdue: int = 0
    exhausted: int = 0
    oldest: float | None = None


def everything(conn: psycopg.Connection[Any]) -> list[RegisteredGroup]:
    """Return all registered groups, by name."""
    return [_group(row) for row in conn.execute(STATEMENTS["all"])]


def find(conn: psycopg.Connection[Any], name: str) -> RegisteredGroup:
    """Return one group; with the defaults when it is not registered."""
    row = conn.execute(STATEMENTS["get"], {"name": name}).fetchone()
    return RegisteredGroup(ProducerGroup(name)) if row is None else _group(row)


def _group(row: tuple[Any, ...]) -> RegisteredGroup:
    name, message_type, *settings, callback, role, registered_at = row
    return RegisteredGroup(
        ProducerGroup(name, MessageType(message_type), *settings), callback, role, registered_at
    )


def alarms(conn: psycopg.Connection[Any], name: str | None = None) -> list[Alarm]:
    """What checkers report about one group, or about all."""
    with conn.cursor(row_factory=class_row(Alarm)) as cursor:
        return cursor.execute(STATEMENTS["alarms"], {"name": name}).fetchall()


def half_message_counts(
    conn: psycopg.Connection[Any], name: str | None = None
) -> dict[str, HalfMessageCounts]:
    """Count what somebody has to decide, per group; as long as it takes to read all that is undecided."""
    with conn.transaction(), conn.cursor(row_factory=class_row(HalfMessageCounts)) as cursor:
        conn.execute(STATEMENTS["settings"])
        found = cursor.execute(STATEMENTS["halves"], {"name": name, "overdue": OVERDUE_S}).fetchall()
    return {one.producer_group: one for one in found}


def change(
    conn: psycopg.Connection[Any], name: str, changes: Mapping[str, Any]
) -> tuple[RegisteredGroup, bool]:
    """Register a group, or change the named settings of a registered one, by the library's own operations.

    Two operators who change a group at the same time do so one after the other: each keeps the other's changes.

    Args:
        conn: A connection with the rights of the role outbox_operator.
        name: The group's name.
        changes: New values by the name of the setting; also `callback` and `role`, where None removes the value.

    Returns:
        The group as it is now, and whether it is new.

    Raises:
        GroupError: The settings contradict one another, or another type is asked for.
    """
    wanted = changes.get("message_type")
    with conn.transaction():
        added = psycopg_sync.run(conn, groups.add(name, wanted))
        row = conn.execute(STATEMENTS["lock"], {"name": name}).fetchone()
        if row is None:
            raise GroupError(f"group {name!r} was removed by somebody else meanwhile; run it again")
        old = _group(row)
        if wanted not in (None, old.settings.message_type):
            raise GroupError(
                f"group {name!r} is registered as {old.settings.message_type} and cannot become {wanted}: its "
                "producers were admitted by its type, and their half messages may be undecided\n"
                "use a group of another name"
            )
        settings = {option: changes.get(option) for option in SETTINGS}
        require_sense(old.settings._replace(**{k: v for k, v in settings.items() if v is not None}))
        psycopg_sync.run(conn, groups.register(name, None, **settings))
        if not changes.keys().isdisjoint({"callback", "role"}):
            callback, role = changes.get("callback", old.callback), changes.get("role", old.role)
            psycopg_sync.run(conn, groups.set_callback(name, callback, role))
        return find(conn, name), added


def require_sense(settings: ProducerGroup) -> None:
    """Refuse settings that contradict one another, by the library's own rule.

    Raises:
        GroupError: It names both values.
    """
    try:
        require_consistent(settings, lambda name: f"--{name.replace('_', '-')}", durations.short)
    except InvalidGroupError as error:
        raise GroupError(str(error)) from None
