"""Pauses of a consumer group, or of a topic in it: who may set them, and which ones a member obeys.

A pause is a row. The keeper of each member reads it with its registration, every ten seconds, also before it opens the
first partition; so a pause outlasts restarts. The member keeps its partitions in Kafka and reads none of those that
are paused: what has not begun is forgotten, as at a rebalance, and comes again. Listeners that run commit; of
what a member that stood still has in hand it may commit one message for each of its threads.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.drivers.psycopg_sync import run
from outbox.errors import ConfigurationError
from outbox.inbox.core.partitions import EVERY_TOPIC
from outbox.statements import Plan, Statement, load

SQL = load("inbox_groups.sql")
LONGEST_REASON = 500


def pause_group(conn: psycopg.Connection[Any], group: str, *, topic: str | None = None, reason: str) -> bool:
    """Pause a group, or a topic in it: at once, or with the transaction that `conn` is in.

    Members obey within ten seconds. Not for a listener: its transaction may be rolled back.

    Args:
        conn: of a user with the role outbox_consumer or outbox_operator.
        group: its name.
        topic: a topic of it; None: all of them.
        reason: why, for operators; 1 to 500 characters.

    Returns:
        Whether it was not paused before; the reason of a pause that is there stays.

    Raises:
        ConfigurationError: There is no such group that the user sees, or the reason is empty or too long.
    """
    if not 1 <= len(reason) <= LONGEST_REASON:
        raise ConfigurationError(
            f"reason: {len(reason)} characters; allowed: 1 to {LONGEST_REASON}, for those who find the group paused"
        )
    with conn.transaction():
        return run(conn, _change("pause", group, topic, reason))


def resume_group(conn: psycopg.Connection[Any], group: str, *, topic: str | None = None) -> bool:
    """Let a group go on, or a topic in it: at once, or with the transaction that `conn` is in.

    Args:
        conn: as of `pause_group`.
        group: its name.
        topic: that was paused by its name; None: end the pause of the whole group. Pauses of topics stay.

    Returns:
        Whether it was paused.

    Raises:
        ConfigurationError: There is no such group that the user sees.
    """
    with conn.transaction():
        return run(conn, _change("resume", group, topic))


def read_pauses(group: int) -> Plan[dict[str, str]]:
    """Return the reasons of the pauses of a group, by topic."""
    rows = yield Statement(SQL["pauses"], (str(group),))
    return dict(rows)


def _change(name: str, group: str, topic: str | None, *values: str) -> Plan[bool]:
    rows = yield Statement(SQL[name], (group, topic or EVERY_TOPIC, *values))
    [(is_known, is_changed)] = rows
    if not is_known:
        raise ConfigurationError(
            f"group: {group!r}; allowed: the name of a group that has run, and that this user sees: outbox consumers ls"
        )
    return bool(is_changed)
