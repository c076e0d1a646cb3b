"""Consumer groups: their members, where they are in each partition, and what of them is parked.

Everything here is in the consumer's database. How far Kafka is ahead of it is in `consumer_lag`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import class_row, dict_row

from outbox.inbox.pauses import pause_group, resume_group
from outbox.statements import Statements
from outbox_relay.operations.actor import actor
from outbox_relay.operations.messages import Row
from outbox_relay.operations.names import did_you_mean, require_known
from outbox_relay.text.errors import OperatorError

STATEMENTS = Statements("outbox_relay/operations/consumers.sql")


@dataclass(frozen=True)
class ConsumerTotals:
    """All consumer groups of a database: how many, their messages that failed, and members without work."""

    groups: int
    dead: int
    retries: int
    retrying: dict[str, int]
    """Those by group."""
    held_keys: int
    idle_members: int
    """Members that run and have read no partition for a minute."""
    idle_group: str | None
    """One of their groups."""
    full_keys: int
    """Held keys whose later messages wait in Kafka, because as many wait in PostgreSQL as may."""
    full_group: str | None
    """One of their groups."""
    paused: int
    """Groups that are paused, or of which a topic is."""
    paused_group: str | None
    """One of them."""


def groups(conn: psycopg.Connection[Any]) -> list[Row]:
    """Return a row for each group and topic, also for groups that do not run; the topic is None before the first."""
    return _rows(conn, "groups")


def positions(conn: psycopg.Connection[Any], group: str | None = None) -> list[Row]:
    """Return a row for each partition that groups, or one of them, have a position in."""
    return _rows(conn, "positions", group)


def members(conn: psycopg.Connection[Any], group: str) -> list[Row]:
    """Return the members of a group, and whether each runs."""
    return _rows(conn, "members", group)


def pauses(conn: psycopg.Connection[Any], group: str) -> list[Row]:
    """Return the pauses of a group, the one of all topics first."""
    return _rows(conn, "pauses", group)


def pause(conn: psycopg.Connection[Any], group: str, topic: str | None, reason: str) -> bool:
    """Pause a group, or a topic in it; return whether it was not paused before. See `outbox.inbox.pauses`.

    Args:
        conn: of a user with the rights of the role outbox_operator.
        group: its name.
        topic: that it reads; None: all of them.
        reason: why.

    Raises:
        OperatorError: there is no such group, or it does not read the topic; with the nearest names.
    """
    _require_topic(conn, group, topic)
    with acting(conn):
        return pause_group(conn, group, topic=topic, reason=reason)


def resume(conn: psycopg.Connection[Any], group: str, topic: str | None) -> bool:
    """End a pause of a group, or of a topic in it; return whether there was one.

    Raises:
        OperatorError: as of `pause`.
    """
    find(conn, group)
    with acting(conn):
        was_paused = resume_group(conn, group, topic=topic)
    if not was_paused:
        _require_topic(conn, group, topic)
    return was_paused


def what_is_deleted(conn: psycopg.Connection[Any], group: str) -> Row | None:
    """Return how many positions, parked messages and dead letters a group has; None: there is no such group."""
    return next(iter(_rows(conn, "what_is_deleted", group)), None)


def _require_topic(conn: psycopg.Connection[Any], group: str, topic: str | None) -> None:
    known = {*find(conn, group)["subscription"], *(row["topic"] for row in positions(conn, group))}
    if topic is not None and topic not in known:
        raise OperatorError(
            f"group {group!r} does not read topic {topic!r}. {did_you_mean(topic, sorted(known))}"
        )


def find(conn: psycopg.Connection[Any], group: str) -> Row:
    """Return a group.

    Raises:
        UnknownNameError: no group has this name.
    """
    found = _rows(conn, "group", group)
    if not found:
        [(role, user)] = conn.execute(STATEMENTS["hidden_by"], {"group": group}).fetchall()
        if role is not None:
            raise OperatorError(
                f"consumer group {group!r} is bound to the role {role}: the user {user} does not see it\n"
                f'run this as an operator (GRANT outbox_operator TO "{user}") or as a member of {role}'
            )
        require_known(conn, consumer_group=group)
    return found[0]


def bind(conn: psycopg.Connection[Any], group: str, role: str) -> bool:
    """Let only members of a role, and operators, see and change what a group has; return whether the group is new.

    Args:
        conn: of a user with the rights of the role outbox_operator.
        group: its name; it is registered if no member of it has run yet.
        role: a role of the server.

    Raises:
        OperatorError: there is no such role; with the nearest names.
    """
    known = [name for (name,) in conn.execute(STATEMENTS["roles"]).fetchall()]
    if role not in known:
        raise OperatorError(
            f"there is no role {role!r}. {did_you_mean(role, known)}\n"
            f'make one, and grant it to the users of the group: CREATE ROLE "{role}" NOLOGIN'
        )
    with _policies(conn):
        [(is_new,)] = conn.execute(STATEMENTS["bind"], {"group": group, "role": role}).fetchall()
    return bool(is_new)


def unbind(conn: psycopg.Connection[Any], group: str) -> None:
    """Leave a group to every consumer again.

    Raises:
        OperatorError: no group has this name; with the names that there are.
    """
    find(conn, group)
    with _policies(conn):
        conn.execute(STATEMENTS["unbind"], {"group": group})


def apply_policies(conn: psycopg.Connection[Any]) -> None:
    """Let the policies of consumer groups choose the rows of this session: its statements are about groups only."""
    conn.execute(STATEMENTS["apply_policies"], {"local": False})


@contextmanager
def _policies(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Let the policies of consumer groups choose the rows of one transaction of a session that has others, too."""
    with conn.transaction():
        conn.execute(STATEMENTS["apply_policies"], {"local": True})
        yield


def of_message(conn: psycopg.Connection[Any], message: Row) -> list[Row]:
    """Return what each group did with a message (a row of outbox.message_status); see `of_message` in consumers.sql."""
    with _policies(conn), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS["of_message"], message).fetchall()


@contextmanager
def acting(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """As `_policies`, and the audit of what is done names the operator."""
    with _policies(conn):
        conn.execute(STATEMENTS["act"], {"actor": actor()})
        yield


def totals(conn: psycopg.Connection[Any]) -> ConsumerTotals:
    """Count the groups of a database, their messages that failed, and members without work."""
    with _policies(conn), conn.cursor(row_factory=class_row(ConsumerTotals)) as cursor:
        found = cursor.execute(STATEMENTS["totals"]).fetchone()
    assert found is not None  # noqa: S101  (one row, always)
    return found


def _rows(conn: psycopg.Connection[Any], name: str, group: str | None = None) -> list[Row]:
    with _policies(conn), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS[name], {"group": group}).fetchall()
