"""Reads and changes `outbox.producer_group`: how a group's half messages are asked about, and what becomes of them.

A group's type never changes: its producers were admitted by it. A group that is not registered has the defaults.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from outbox.errors import InvalidGroupError
from outbox.operations import groups
from outbox.operations.groups import DEFAULTS, GROUP_TYPES, POLICIES, require_consistent
from outbox.operations.topics import MessageType
from outbox_relay import durations
from outbox_relay.database.statements import Statements
from outbox_relay.operations.group_errors import GroupError
from outbox_relay.operations.half_messages import OVERDUE_S

STATEMENTS = Statements("operations/groups.sql")
__all__ = [
    "POLICIES",
    "TYPES",
    "Alarm",
    "Halves",
    "ProducerGroup",
    "alarms",
    "change",
    "everything",
    "find",
    "halves",
]

TYPES = tuple(map(str, GROUP_TYPES))


@dataclass(frozen=True)
class ProducerGroup:
    """One row of the registry: the library's record with what only operators set. The defaults are the library's."""

    name: str
    message_type: str = str(DEFAULTS.message_type)
    check_after: timedelta = DEFAULTS.check_after
    check_interval: timedelta = DEFAULTS.check_interval
    max_check_interval: timedelta = DEFAULTS.max_check_interval
    check_timeout: timedelta = DEFAULTS.check_timeout
    max_checks: int = DEFAULTS.max_checks
    max_age: timedelta = DEFAULTS.max_age
    policy: str = DEFAULTS.policy
    workers: int = DEFAULTS.workers
    callback: dict[str, Any] | None = None
    role: str | None = None
    registered_at: datetime | None = None

    @property
    def registered(self) -> bool:
        """Whether it has a row of its own."""
        return self.registered_at is not None


@dataclass(frozen=True)
class Alarm:
    """What a checker says about a group; age and seen in seconds: since it was raised, and last confirmed."""

    producer_group: str
    kind: str
    detail: str
    since: datetime
    seen_at: datetime
    age: float
    seen: float


@dataclass(frozen=True)
class Halves:
    """A group's half messages that somebody has to decide; the oldest in seconds."""

    producer_group: str
    undecided: int = 0
    overdue: int = 0
    exhausted: int = 0
    oldest: float | None = None


def everything(conn: psycopg.Connection[Any]) -> list[ProducerGroup]:
    """All registered groups, by name."""
    with conn.cursor(row_factory=class_row(ProducerGroup)) as cursor:
        return cursor.execute(STATEMENTS["all"]).fetchall()


def find(conn: psycopg.Connection[Any], name: str) -> ProducerGroup:
    """One group; with the defaults when it is not registered."""
    with conn.cursor(row_factory=class_row(ProducerGroup)) as cursor:
        return cursor.execute(STATEMENTS["get"], {"name": name}).fetchone() or ProducerGroup(name)


def alarms(conn: psycopg.Connection[Any], name: str | None = None) -> list[Alarm]:
    """What checkers say about one group, or about all."""
    with conn.cursor(row_factory=class_row(Alarm)) as cursor:
        return cursor.execute(STATEMENTS["alarms"], {"name": name}).fetchall()


def halves(conn: psycopg.Connection[Any], name: str | None = None) -> dict[str, Halves]:
    """Count what somebody has to decide, per group; as long as it takes to read all that is undecided."""
    with conn.transaction(), conn.cursor(row_factory=class_row(Halves)) as cursor:
        conn.execute(STATEMENTS["settings"])
        found = cursor.execute(STATEMENTS["halves"], {"name": name, "overdue": OVERDUE_S}).fetchall()
    return {one.producer_group: one for one in found}


def change(conn: psycopg.Connection[Any], name: str, changes: dict[str, Any]) -> tuple[ProducerGroup, bool]:
    """Register a group, or change the named settings of a registered one. Answers the row and whether it is new.

    Two that change a group at the same time come one after the other; each keeps what the other changed besides.

    Raises:
        GroupError: the settings contradict one another, or another type is asked for.
    """
    wanted = changes.get("message_type")
    with conn.transaction(), conn.cursor(row_factory=class_row(ProducerGroup)) as cursor:
        added = conn.execute(
            STATEMENTS["add"], {"name": name, "message_type": wanted or ProducerGroup.message_type}
        ).fetchone()
        old = cursor.execute(STATEMENTS["lock"], {"name": name}).fetchone()
        if old is None:
            raise GroupError(f"group {name!r} was removed by somebody else meanwhile; run it again")
        if wanted not in (None, old.message_type):
            raise GroupError(
                f"group {name!r} is registered as {old.message_type} and cannot become {wanted}: its producers were "
                "admitted by its type, and their half messages may be undecided\nuse a group of another name"
            )
        new = replace(old, **changes)
        require_sense(new)
        values = asdict(new) | {"callback": None if new.callback is None else Jsonb(new.callback)}
        conn.execute(STATEMENTS["change"], values)
    return new, added is not None


def require_sense(group: ProducerGroup) -> None:
    """Refuse settings that contradict one another, by the library's own rule.

    Raises:
        GroupError: with both values.
    """
    try:
        require_consistent(
            groups.ProducerGroup(
                group.name,
                MessageType(group.message_type),
                group.check_after,
                group.check_interval,
                group.max_check_interval,
                group.check_timeout,
                group.max_age,
            ),
            lambda name: f"--{name.replace('_', '-')}",
            durations.short,
        )
    except InvalidGroupError as error:
        raise GroupError(str(error)) from None
