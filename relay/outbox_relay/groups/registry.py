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

from outbox_relay import durations
from outbox_relay.groups.errors import GroupError
from outbox_relay.halves.search import OVERDUE_S
from outbox_relay.statements import Statements

STATEMENTS = Statements("groups/registry.sql")

TYPES = ("NORMAL", "TRANSACTION", "MIXED")
POLICIES = ("ROLLBACK", "EXHAUSTED")


@dataclass(frozen=True)
class ProducerGroup:
    """One row of the registry; the defaults are those of the table, which an unregistered group has."""

    name: str
    message_type: str = "MIXED"
    check_after: timedelta = timedelta(seconds=6)
    check_interval: timedelta = timedelta(seconds=30)
    max_check_interval: timedelta = timedelta(minutes=10)
    check_timeout: timedelta = timedelta(seconds=3)
    max_checks: int = 15
    max_age: timedelta = timedelta(hours=72)
    policy: str = "ROLLBACK"
    workers: int = 4
    callback: dict[str, Any] | None = None
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
    """Refuse settings that contradict one another.

    Raises:
        GroupError: with both values.
    """
    zero = timedelta()
    for option, value in (
        ("--check-interval", group.check_interval),
        ("--check-timeout", group.check_timeout),
        ("--max-age", group.max_age),
    ):
        if value <= zero:
            raise GroupError(f"{option} must be longer than nothing")
    longest, interval, first, age = map(
        durations.short, (group.max_check_interval, group.check_interval, group.check_after, group.max_age)
    )
    if group.max_check_interval < group.check_interval:
        raise GroupError(
            f"--max-check-interval {longest} is shorter than --check-interval {interval}: the interval grows from the "
            "second to the first"
        )
    if group.max_age <= group.check_after:
        raise GroupError(
            f"--max-age {age} is not longer than --check-after {first}: the policy {group.policy} would decide "
            "before anybody is asked"
        )
