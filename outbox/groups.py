"""Producer groups: which types of message one sends, and how its half messages are asked about.

Rows live in `outbox.producer_group`. A group that is not there is MIXED and has the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from outbox import checks
from outbox.errors import GroupTypeError, InvalidGroupError, InvalidMessageError
from outbox.spans import Span, interval, text_of
from outbox.statements import Plan, Rows, Statement, TextArray, load
from outbox.topics import KNOWN_FOR, MessageType, Topic, TopicCache

_SQL = load("groups.sql")
_READ_REGISTRY = _SQL["read_registry"]

GROUP_TYPES = (MessageType.NORMAL, MessageType.TRANSACTION, MessageType.MIXED)
POLICIES = ("ROLLBACK", "EXHAUSTED")
MOST_CHECKS = 2**31 - 1
MOST_WORKERS = 64
SHORTEST = timedelta(milliseconds=1)


class ProducerGroup(NamedTuple):
    """A registered producer group; see `Outbox.register_group` for what each value means."""

    name: str
    message_type: MessageType
    check_after: timedelta
    check_interval: timedelta
    max_check_interval: timedelta
    check_timeout: timedelta
    max_age: timedelta
    max_checks: int
    policy: str
    workers: int


class Registry(TopicCache):
    """What one `Outbox` remembers of topics and of its own group, which is read along with topics."""

    def __init__(self, producer_group: str | None, known_for: float = KNOWN_FOR) -> None:
        super().__init__(known_for)
        self._group = producer_group
        self._until = 0.0 if producer_group is not None else float("inf")
        self._type = MessageType.MIXED

    def lookup(self, names: Iterable[str], *, half: bool = False) -> Plan[dict[str, Topic | None]]:
        """Answer the topics by name, in one statement at most.

        Raises:
            GroupTypeError: the producer group is not for this type of message.
        """
        now = time.monotonic()
        found, missing = self._known(names, now)
        if missing or (found and self._until <= now):
            rows = yield from self._read(missing)
            self._remember(found, missing, rows, now)
        if self._type is not MessageType.MIXED and found:
            self._require(half=half)
        return found

    def forget_group(self) -> None:
        """Read the group anew at its next use."""
        self._until = 0.0 if self._group is not None else float("inf")

    def _read(self, names: list[str]) -> Plan[Rows]:
        rows = yield Statement(_READ_REGISTRY, (TextArray(names), self._group))
        topics = [row for row in rows if row[0] is not None]
        if self._group is not None:
            self._type = next((MessageType(row[1]) for row in rows if row[0] is None), MessageType.MIXED)
            self._until = time.monotonic() + self._known_for
        return topics

    def _require(self, *, half: bool) -> None:
        if half and self._type is MessageType.NORMAL:
            raise GroupTypeError(
                f"producer_group: {self._group!r} is registered as NORMAL, which prepares no half messages; "
                "allowed: send, or an Outbox of a group of type TRANSACTION or MIXED"
            )
        if not half and self._type is MessageType.TRANSACTION:
            raise GroupTypeError(
                f"producer_group: {self._group!r} is registered as TRANSACTION, which is not shared with other "
                "messages; allowed: prepare, or an Outbox of a group of type NORMAL or MIXED"
            )


def register(
    name: str,
    message_type: MessageType | str | None,
    *,
    check_after: Span | None,
    check_interval: Span | None,
    max_check_interval: Span | None,
    check_timeout: Span | None,
    max_age: Span | None,
    max_checks: int | None,
    policy: str | None,
    workers: int | None,
) -> Plan[ProducerGroup]:
    """Add a group, or change what is given of a registered one, but for its type.

    Raises:
        InvalidGroupError: an argument is wrong.
        GroupTypeError: the group is registered with another type.
    """
    wanted = _checked(name, message_type)
    spans = [
        interval(argument, value, InvalidGroupError, least=least)
        for argument, value, least in (
            ("check_after", check_after, timedelta(0)),
            ("check_interval", check_interval, SHORTEST),
            ("max_check_interval", max_check_interval, SHORTEST),
            ("check_timeout", check_timeout, SHORTEST),
            ("max_age", max_age, SHORTEST),
        )
    ]
    if spans[1] is not None and spans[2] is not None and spans[2] < spans[1]:
        raise InvalidGroupError(
            f"max_check_interval: {max_check_interval!r} is less than check_interval; allowed: at least as long"
        )
    options = (
        *(text_of(span) for span in spans),
        _number("max_checks", max_checks, MOST_CHECKS),
        _policy(policy),
        _number("workers", workers, MOST_WORKERS),
    )
    yield Statement(_SQL["add_group"], (name, wanted))
    if any(option is not None for option in options):
        yield Statement(_SQL["configure_group"], (name, wanted, *options))
    ((_, found, *times, checks_, kept, workers_),) = yield Statement(_SQL["read_group"], (name,))
    if wanted is not None and found != wanted:
        raise GroupTypeError(
            f"message_type: producer group {name!r} is registered as {found}, not {wanted}; allowed: {found}, or "
            "another group: what it has sent stays of its type"
        )
    after, every, most, timeout, age = (timedelta(microseconds=each) for each in times)
    return ProducerGroup(name, MessageType(found), after, every, most, timeout, age, checks_, kept, workers_)


def _checked(name: Any, message_type: Any) -> str | None:
    try:
        checks.text("name", name)
    except InvalidMessageError as error:
        raise InvalidGroupError(str(error)) from None
    if len(name) > 255:
        raise InvalidGroupError(f"name: has {len(name)} characters; allowed: 1 to 255")
    if message_type is None:
        return None
    if message_type not in GROUP_TYPES:
        raise InvalidGroupError(f"message_type: {message_type!r} is none; allowed: {', '.join(GROUP_TYPES)}")
    return str(MessageType(message_type))


def _number(argument: str, value: Any, most: int) -> str | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= most:
        raise InvalidGroupError(f"{argument}: {value!r}; allowed: a whole number from 1 to {most}")
    return str(value)


def _policy(value: Any) -> str | None:
    if value is not None and value not in POLICIES:
        raise InvalidGroupError(f"policy: {value!r} is none; allowed: {', '.join(POLICIES)}")
    return None if value is None else str(value)
