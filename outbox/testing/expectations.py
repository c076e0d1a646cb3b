"""Compares what was sent with what a test expects, and lists what was sent where they differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from outbox.testing.messages import SentMessage

ANY: Any = object()
"""Stands for an argument that is not given."""
_MOST_SHOWN = 10
_LONGEST_SHOWN = 200


class Expected(NamedTuple):
    """A topic, and what else a message has to fit."""

    topic: str
    fields: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        topic: str,
        *,
        key: bytes | str | None = ANY,
        body: Any = ANY,
        headers: Mapping[str, str | None] = ANY,
        tags: Iterable[str] = ANY,
        state: str = ANY,
    ) -> Expected:
        """Keep what is given; see `SentMessages.assert_sent`."""
        fields = {"key": key, "body": body, "headers": headers, "tags": tags, "state": state}
        return cls(topic, {name: value for name, value in fields.items() if value is not ANY})

    def fitting(self, messages: Iterable[SentMessage]) -> list[SentMessage]:
        """Return those of the topic that fit."""
        return [each for each in messages if each.topic == self.topic and not self._faults(each)]

    def require(self, messages: list[SentMessage], count: int) -> list[SentMessage]:
        """Return the messages that fit.

        Raises:
            AssertionError: they are not `count`; with what was sent, that which fits best first.
        """
        fitting = self.fitting(messages)
        if len(fitting) == count:
            return fitting
        raise AssertionError(f"expected {count} of {self}; sent {len(fitting)}{self._nearest(messages)}")

    def require_some(self, messages: list[SentMessage]) -> list[SentMessage]:
        """Return the messages that fit.

        Raises:
            AssertionError: there is no such message; with what was sent, that which fits best first.
        """
        fitting = self.fitting(messages)
        if fitting:
            return fitting
        raise AssertionError(f"expected an undecided half message of {self}{self._nearest(messages)}")

    def __str__(self) -> str:
        return ", ".join([repr(self.topic), *(f"{name}={value!r}" for name, value in self.fields.items())])

    def _nearest(self, messages: list[SentMessage]) -> str:
        of_topic = sorted((each for each in messages if each.topic == self.topic), key=self._faults)
        what = f"messages of {self.topic!r}" if of_topic else "messages of other topics"
        return _listed(what, of_topic or messages)

    def _faults(self, message: SentMessage) -> int:
        return sum(not _fits(message, name, value) for name, value in self.fields.items())


def _fits(message: SentMessage, name: str, expected: Any) -> bool:
    found = getattr(message, name)
    if name == "headers":
        return all(header in found and found[header] == value for header, value in expected.items())
    if name == "tags":
        return set(expected) <= set(found)
    if isinstance(expected, str) and name != "state":
        return bool(found == expected.encode())
    if expected is None or isinstance(expected, bytes | str):
        return bool(found == expected)
    try:
        return bool(json.loads(found or b"") == expected)
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
