"""Deletes a consumer group that does not run: what PostgreSQL has of it, and Kafka's offsets.

The schedule:

1. Kafka is asked whether it has members of the group: refused.
2. In one transaction, under the lock of the group's row: a member was seen within a minute: refused. What the group
   has is deleted, and its number is noted as deleted, with who did it and why. A process that dies before the commit
   has changed nothing. A member that joins afterwards registers a new group.
3. Its rows of the inbox are deleted, some at a time. A process that dies in between leaves some; the command finds them
   when it is given again.
4. Kafka's offsets are deleted. A process that dies before that leaves them, and so does Kafka if a member has joined
   meanwhile: a new group of the name begins there. The command can be given again.

A member that stood still since before 2 takes no message over any more, because its number is noted; and its keeper
ends it, which states why. A transaction in which its listener ran already may commit: its effect is that of a message
which the group took over before it was deleted, and its row of the inbox stays until the command is given again, or its
day is dropped.
"""

from __future__ import annotations

from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException

from outbox_relay.operations import consumers
from outbox_relay.operations.consumer_lag import KAFKA_TIMEOUT_S, KafkaOffsets
from outbox_relay.operations.consumer_reset import require_empty
from outbox_relay.operations.messages import Row
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.waiting import announced

AT_A_TIME = 10_000
_GONE = frozenset({KafkaError.GROUP_ID_NOT_FOUND})


def find_deletable(conn: psycopg.Connection[Any], group: str) -> Row | None:
    """Return what a group has; None: it was deleted before, and the rest of it may be left.

    Raises:
        OperatorError: No group has, or had, this name.
    """
    found = consumers.what_is_deleted(conn, group)
    if found is None and not _numbers(conn, group):
        consumers.find(conn, group)
    return found


def delete(conn: psycopg.Connection[Any], kafka: KafkaOffsets | None, group: str, reason: str) -> int:
    """Delete a group, or what is left of it; return how many rows its inbox had.

    Args:
        conn: an autocommit connection of a user with the rights of the role outbox_operator.
        kafka: where its offsets are; None: they stay.
        group: its name.
        reason: why, for the audit.

    Raises:
        OperatorError: A member runs, or Kafka has one, or a message of the group is locked.
    """
    if kafka is not None:
        with announced(f"Kafka at {kafka.bootstrap_servers}"):
            require_empty(kafka, group)
    try:
        with consumers.acting(conn):
            conn.execute(consumers.STATEMENTS["delete_group"], {"group": group, "reason": reason})
    except psycopg.errors.ObjectInUse as error:
        raise OperatorError(f"{error.diag.message_primary}\n{error.diag.message_hint}") from None
    except psycopg.errors.LockNotAvailable:
        raise OperatorError(
            f"a message of group {group!r} is locked: a member that stands still has it. Nothing was changed; end the "
            "process of that member, and give the command again"
        ) from None
    gone = 0
    for number in _numbers(conn, group):
        while step := _forget(conn, number):
            gone += step
    if kafka is not None:
        _delete_offsets(kafka, group)
    return gone


def _numbers(conn: psycopg.Connection[Any], group: str) -> list[int]:
    return [
        number for (number,) in conn.execute(consumers.STATEMENTS["deleted"], {"group": group}).fetchall()
    ]


def _forget(conn: psycopg.Connection[Any], number: int) -> int:
    values = {"number": number, "most": AT_A_TIME}
    [(gone,)] = conn.execute(consumers.STATEMENTS["forget"], values).fetchall()
    return int(gone)


def _delete_offsets(kafka: KafkaOffsets, group: str) -> None:
    try:
        deleting = kafka.admin.delete_consumer_groups([group], request_timeout=KAFKA_TIMEOUT_S)[group]
        deleting.result(KAFKA_TIMEOUT_S + 5)
    except (KafkaException, TimeoutError) as error:
        if isinstance(error, KafkaException) and error.args[0].code() in _GONE:
            return
        raise OperatorError(
            f"PostgreSQL has nothing of group {group!r} any more, and Kafka still has its offsets: {readable(error)}\n"
            "give the command again, else a new group of this name begins at these offsets"
        ) from error
