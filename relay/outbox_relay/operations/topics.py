"""Reads and changes `outbox.topic`: message type, pinned partition count, selector, size limit.

Rows are written by the library's own operation (`outbox.operations.topics`): one rule holds for applications and
operators. The
partition count and the selector decide where a key goes. They are pinned: changing them sends keys to other partitions,
where their later messages may overtake the earlier ones, so it has to be asked for by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.drivers import psycopg_sync
from outbox.errors import InvalidTopicError
from outbox.operations import topics
from outbox.statements import Statements
from outbox_relay.operations.names import did_you_mean
from outbox_relay.operations.topic_errors import TopicError

STATEMENTS = Statements("outbox_relay/operations/topics.sql")

MOVES_KEYS = (
    "keys are hashed over {what}: with another one they go to other partitions, and there a key's later messages "
    "can be read before its earlier ones. If that is meant, stop the producers of this topic, wait until "
    "`outbox status` shows no backlog for it and its consumers have read all, and repeat with --move-keys"
)


@dataclass(frozen=True)
class Registered:
    """One row of the registry."""

    name: str
    message_type: str
    partitions: int
    selector: str | None
    max_message_bytes: int
    registered_at: datetime
    paused_at: datetime | None = None
    paused_by: str | None = None
    pause_reason: str | None = None
    repartition_to: int | None = None
    """The count that it gets once `repartition_groups` have read its partitions; it is paused until then."""
    repartition_groups: list[str] | None = None
    pause_when_grown: bool = False
    """Whether nothing of it is published while Kafka has more partitions than are pinned."""
    skip_ahead: bool = False


def everything(conn: psycopg.Connection[Any]) -> list[Registered]:
    """All registered topics, by name."""
    with conn.cursor(row_factory=class_row(Registered)) as cursor:
        return cursor.execute(STATEMENTS["all"]).fetchall()


def find(conn: psycopg.Connection[Any], name: str) -> Registered | None:
    """One topic, or None."""
    with conn.cursor(row_factory=class_row(Registered)) as cursor:
        return cursor.execute(STATEMENTS["get"], {"name": name}).fetchone()


def get(conn: psycopg.Connection[Any], name: str) -> Registered:
    """One topic.

    Raises:
        TopicError: it is not registered; with the nearest names.
    """
    found = find(conn, name)
    if found is None:
        names = [topic.name for topic in everything(conn)]
        raise TopicError(
            f"topic {name!r} is not registered. {did_you_mean(name, names)}\n"
            f"register an existing Kafka topic: outbox topic register {name}"
        )
    return found


def add(
    conn: psycopg.Connection[Any],
    name: str,
    *,
    message_type: str,
    partitions: int,
    selector: str | None,
    max_message_bytes: int,
    skip_ahead: bool = False,
) -> tuple[Registered, bool]:
    """Register a topic; the same again is fine. Returns the row and whether it is new.

    Raises:
        TopicError: it is registered with other properties; names them and the command that changes them.
    """
    try:
        with conn.transaction():
            plan = topics.add(
                name, partitions, message_type, max_message_bytes, selector, skip_ahead=skip_ahead
            )
            made = psycopg_sync.run(conn, plan)
    except InvalidTopicError as error:
        raise TopicError(str(error)) from None
    if made is not None:
        return get(conn, name), True
    found = get(conn, name)
    different = [
        f"{what} {was if was is not None else 'murmur2'}, not {wanted if wanted is not None else 'murmur2'}"
        for what, was, wanted in (
            ("type", found.message_type, message_type),
            ("pinned partitions", found.partitions, partitions),
            ("selector", found.selector, selector),
            ("max_message_bytes", found.max_message_bytes, max_message_bytes),
            ("skip_ahead", found.skip_ahead, skip_ahead),
        )
        if was != wanted
    ]
    if different:
        raise TopicError(
            f"topic {name!r} is registered already, with {'; '.join(different)}\n"
            f"change it with: outbox topic alter {name} --help"
        )
    return found, False


def require_keys_stay(
    old: Registered, partitions: int | None, selector: str | None, *, clear_selector: bool = False
) -> None:
    """Refuse a change that would send keys to other partitions; None changes nothing.

    Raises:
        TopicError: with what would happen, and how to do it in safety.
    """
    if partitions is not None and partitions != old.partitions:
        in_order = (
            f"\nto go over with each key in its order: outbox topic repartition {old.name} --to {partitions}"
            if partitions > old.partitions
            else ""
        )
        raise TopicError(
            f"topic {old.name!r} is pinned to {old.partitions} partitions, not changed to {partitions}: "
            + MOVES_KEYS.format(what="the pinned count")
            + in_order
        )
    selector = "murmur2" if clear_selector else selector
    if selector not in (None, old.selector or "murmur2"):
        raise TopicError(
            f"topic {old.name!r} has the selector {old.selector or 'murmur2'}, not changed to "
            f"{selector}: " + MOVES_KEYS.format(what="partitions by the selector")
        )


def change(
    conn: psycopg.Connection[Any],
    old: Registered,
    *,
    message_type: str,
    partitions: int,
    selector: str | None,
    max_message_bytes: int,
    skip_ahead: bool | None = None,
) -> Registered:
    """Change a registered topic, unless it has changed since it was read; `selector` None: it has none;
    `skip_ahead` None: it stays as it is.

    The caller has asked for moved keys where it must (`require_keys_stay`).

    Raises:
        TopicError: it was changed meanwhile, or it waits for consumer groups before its keys move.
    """
    if old.repartition_to is not None and (partitions, selector) != (old.partitions, old.selector):
        raise TopicError(
            f"topic {old.name!r} is held until it goes over to {old.repartition_to} partitions; its keys cannot be "
            f"moved in another way meanwhile\nput it back first: outbox topic repartition {old.name} --abort"
        )
    with conn.transaction():
        with conn.cursor(row_factory=class_row(Registered)) as cursor:
            now = cursor.execute(STATEMENTS["lock"], {"name": old.name}).fetchone()
        if now != old:
            raise TopicError(
                f"topic {old.name!r} was changed by another session meanwhile, and nothing was changed here; "
                f"check it, then repeat the command: outbox topic show {old.name}"
            )
        try:
            plan = topics.register(
                old.name,
                partitions,
                message_type,
                max_message_bytes,
                selector,
                skip_ahead=skip_ahead,
                move_keys=True,
                clear_selector=selector is None,
            )
            psycopg_sync.run(conn, plan)
        except InvalidTopicError as error:
            raise TopicError(str(error)) from None
    return get(conn, old.name)
