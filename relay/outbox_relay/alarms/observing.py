"""What is wrong now: causes are found in the tables, and remembered as rows of `outbox.notice` until they are over.

A row is one alarm. It is raised once, however often its cause is found, and by however many processes: they observe in
turns, under a lock of their session. Schedules:

- A process dies between two statements: the rows that it wrote are true, and the next turn of any process goes on.
- It is paused there: its session ends after 5 s, and the lock is free. When it wakes up, its next statement fails, so
  that it clears nothing by an old finding.
- A cause ends and begins again between two turns: one alarm stands. It ends, is cleared, and begins again before the
  receiver has heard of it: the end is sent, then a new alarm is raised by the next turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import psycopg

from outbox.statements import Statements
from outbox_relay.text.durations import about

STATEMENTS = Statements("outbox_relay/alarms/alarms.sql")

BACKLOG = "backlog"
SLOW = [BACKLOG, "message_dead"]
"""Kinds whose search takes the longer the more messages are unpublished or undecided."""
LONGEST_DETAIL = 500

FindLate = Callable[[psycopg.Connection[Any]], Sequence[tuple[str, int, float]]]
"""Finds late topics: the name, the messages that are not published, and the age of the oldest in seconds."""


class Cause(NamedTuple):
    """One thing that is wrong; `detail` is for people and holds no body."""

    kind: str
    cause: str
    detail: str


def observe(conn: psycopg.Connection[Any], find_late: FindLate | None, *, slow: bool = True) -> bool:
    """Raise and clear alarms by what is found; return False when another process does so at this moment.

    Args:
        conn: in autocommit, and closed when this returns: its session has the turn.
        find_late: finds the topics whose backlog raises an alarm; None: none does.
        slow: whether the kinds of `SLOW` are searched for this time; else their alarms stay as they are.
    """
    conn.execute(STATEMENTS["settings"])
    row = conn.execute(STATEMENTS["only_one"]).fetchone()
    if row is None or not row[0]:
        return False
    found = [Cause(*each) for each in conn.execute(STATEMENTS["found"]).fetchall()]
    unread = SLOW
    if slow:
        found += [Cause(*each) for each in conn.execute(STATEMENTS["found_dead"]).fetchall()]
        # Without a limit what another process raised is cleared only by one that has a limit.
        unread = [BACKLOG] if find_late is None else []
    if slow and find_late is not None:
        found += [
            Cause(
                BACKLOG, f"topic {name}", f"{count:,} messages are not published, the oldest for {about(age)}"
            )
            for name, count, age in find_late(conn)
        ]
    for each in found:
        detail = each.detail[:LONGEST_DETAIL]
        conn.execute(STATEMENTS["raise"], {"kind": each.kind, "cause": each.cause, "detail": detail})
    conn.execute(
        STATEMENTS["clear"],
        {
            "kinds": [each.kind for each in found],
            "causes": [each.cause for each in found],
            "except_kinds": unread,
        },
    )
    return True
