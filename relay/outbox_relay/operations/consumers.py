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

from outbox.statements import Statements
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


def groups(conn: psycopg.Connection[Any]) -> list[Row]:
    """Return a row for each group and topic, also for groups that do not run; the topic is None before the first."""
    return _rows(conn, "groups")


def positions(conn: psycopg.Connection[Any], group: str | None = None) -> list[Row]:
    """Return a row for each partition that groups, or one of them, have a position in."""
    return _rows(conn, "positions", group)


def members(conn: psycopg.Connection[Any], group: str) -> list[Row]:
    """Return the members of a group, and whether each runs."""
    return _rows(conn, "members", group)


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


def totals(conn: psycopg.Connection[Any]) -> ConsumerTotals:
    """Count the groups of a database, their messages that failed, and members without work."""
    with _policies(conn), conn.cursor(row_factory=class_row(ConsumerTotals)) as cursor:
        found = cursor.execute(STATEMENTS["totals"]).fetchone()
    assert found is not None  # noqa: S101  (one row, always)
    return found


def _rows(conn: psycopg.Connection[Any], name: str, group: str | None = None) -> list[Row]:
    with _policies(conn), conn.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(STATEMENTS[name], {"group": group}).fetchall()
