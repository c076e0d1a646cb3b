"""Pauses a topic, by hand or when it grows, and lets it go on: one statement each.

What relays then do: publisher/hands/gates.py, docs/adr/0011.

Between any two lines the process may die: the statement has committed, or nothing has happened. Repeated, it changes
nothing. Two commands at once: the row's lock puts them in a row, and the second finds what the first has done.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.operations import topics
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.operations.topics import Registered

STATEMENTS = Statements("outbox_relay/operations/topic_pauses.sql")


def pause(conn: psycopg.Connection[Any], name: str, reason: str) -> tuple[Registered, bool]:
    """Pause a topic; return it, and whether it was not paused before. Needs the role outbox_operator.

    Raises:
        TopicError: it is not registered.
    """
    topics.get(conn, name)
    changed = conn.execute(STATEMENTS["pause"], {"name": name, "reason": reason}).rowcount == 1
    return topics.get(conn, name), changed


def resume(conn: psycopg.Connection[Any], name: str) -> bool:
    """Let a topic go on; return whether it was paused. Needs the role outbox_operator.

    Raises:
        TopicError: it is not registered, or `outbox topic repartition` holds it.
    """
    topics.get(conn, name)
    if conn.execute(STATEMENTS["resume"], {"name": name}).rowcount == 1:
        return True
    found = topics.get(conn, name)
    if found.repartition_to is not None:
        raise TopicError(
            f"topic {name!r} is held until consumer groups have read its partitions ({found.pause_reason}); it goes on "
            f"by itself then\nto go on now with {found.partitions} partitions: outbox topic repartition {name} --abort"
        )
    return False


def pause_when_grown(conn: psycopg.Connection[Any], name: str, *, pauses: bool) -> bool:
    """Let a topic pause by itself when Kafka has more partitions than are pinned, or not; return whether that is new.

    Needs the role outbox_operator. A relay that notices the growth notes it, and publishes by the pinned count until it
    reads the topic again, within a quarter of a second: keys are in order before the pause as well.

    Raises:
        TopicError: it is not registered.
    """
    topics.get(conn, name)
    return conn.execute(STATEMENTS["when_grown"], {"name": name, "pauses": pauses}).rowcount == 1


def waiting(conn: psycopg.Connection[Any], name: str) -> int:
    """Return how many messages wait because the topic is parked."""
    row = conn.execute(STATEMENTS["waiting"], {"name": name}).fetchone()
    assert row is not None  # noqa: S101  (a sum has a row)
    return int(row[0])
