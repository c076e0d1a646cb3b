"""Reads the messages that were sent, and compares them with what a test expects."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import tuple_row

from outbox.statements import load

_SQL = load("testing.sql")
_MOST_SHOWN = 10
_LONGEST_SHOWN = 200
_ANY: Any = object()


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message as it is in the table; `state` is COMMITTED, or UNKNOWN for a half message that is undecided."""

    id: int
    message_id: UUID
    topic: str
    key: bytes | None
    body: bytes | None
    headers: Mapping[str, str | None]
    tags: tuple[str, ...]
    index_keys: tuple[str, ...]
    order_key: bytes | None
    state: str
    producer_group: str | None
    deliver_at: datetime | None
    deliver_before: datetime | None


class SentMessages:
    """The messages that were sent after this object was made, as its connection sees them.

    Args:
        conn: the connection by which the code under test sends, or another one, which sees what is committed.
    """

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        [(newest,)] = self._ask("newest")
        self._after = str(newest)

    def all(self, topic: str | None = None) -> list[SentMessage]:
        """Return them in the order in which they were sent.

        Args:
            topic: only those of this topic.
        """
        found = []
        for id_, message_id, of_topic, key, body, headers, tags, index_keys, *rest in self._ask(
            "sent", self._after
        ):
            if topic is None or of_topic == topic:
                lists = (tuple(tags or ()), tuple(index_keys or ()))
                found.append(
                    SentMessage(id_, message_id, of_topic, key, body, dict(headers or {}), *lists, *rest)
                )
        return found

    def assert_sent(
        self,
        topic: str,
        *,
        key: bytes | str | None = _ANY,
        body: Any = _ANY,
        headers: Mapping[str, str | None] = _ANY,
        tags: Iterable[str] = _ANY,
        state: str = _ANY,
        count: int = 1,
    ) -> list[SentMessage]:
        """Fail unless exactly `count` messages fit everything that is given; return them.

        Args:
            topic: their topic.
            key: their key; text is UTF-8.
            body: their body: bytes, text, None, or what its JSON reads as (a dict, a list, a number).
            headers: headers that they have, among others.
            tags: tags that they have, among others.
            state: COMMITTED for messages that were sent, UNKNOWN for half messages.
            count: how many; 0 is what `refute_sent` asks.

        Raises:
            AssertionError: with what was sent, that which fits best first.
        """
        wanted = {"key": key, "body": body, "headers": headers, "tags": tags, "state": state}
        wanted = {name: value for name, value in wanted.items() if value is not _ANY}
        found = [
            (sum(not _fits(each, name, wanted[name]) for name in wanted), each) for each in self.all(topic)
        ]
        fitting = [each for faults, each in found if not faults]
        if len(fitting) == count:
            return fitting
        asked = ", ".join([repr(topic), *(f"{name}={value!r}" for name, value in wanted.items())])
        nearest = [each for _, each in sorted(found, key=lambda pair: pair[0])] or self.all()
        raise AssertionError(
            f"expected {count} of {asked}; sent {len(fitting)}"
            + _listed(f"messages of {topic!r}" if found else "messages of other topics", nearest)
        )

    def refute_sent(self, topic: str, **wanted: Any) -> None:
        """Fail if a message was sent that fits; takes what `assert_sent` takes.

        Raises:
            AssertionError: with what was sent.
        """
        self.assert_sent(topic, **wanted, count=0)

    def _ask(self, name: str, *values: str) -> list[tuple[Any, ...]]:
        with psycopg.RawCursor(self._conn, row_factory=tuple_row) as cursor:
            return cursor.execute(_SQL[name], values).fetchall()


def _fits(message: SentMessage, name: str, wanted: Any) -> bool:
    found = getattr(message, name)
    if name == "headers":
        return all(header in found and found[header] == value for header, value in wanted.items())
    if name == "tags":
        return set(wanted) <= set(found)
    if isinstance(wanted, str) and name != "state":
        return bool(found == wanted.encode())
    if wanted is None or isinstance(wanted, bytes | str):
        return bool(found == wanted)
    try:
        return bool(json.loads(found or b"") == wanted)
    except ValueError:
        return False


def _listed(what: str, messages: list[SentMessage]) -> str:
    if not messages:
        return (
            "\nno message was sent on this connection: was the session flushed, and is it the same database?"
        )
    lines = [
        f"\n  {each.topic} key={each.key!r} body={_short(each.body)} headers={dict(each.headers)} "
        f"tags={list(each.tags)} state={each.state}"
        for each in messages[:_MOST_SHOWN]
    ]
    left = len(messages) - len(lines)
    return f"\n{what}:{''.join(lines)}" + (f"\n  and {left} more" if left else "")


def _short(body: bytes | None) -> str:
    text = repr(body)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"
