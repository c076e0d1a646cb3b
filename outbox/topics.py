"""The topic registry: which types of message a topic takes, and the partition count its keys are hashed over.

Rows live in `outbox.topic`. A topic that is not there takes everything; the relay registers it, as MIXED, when it
first publishes to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from outbox import checks
from outbox.errors import InvalidTopicError, OutboxError, WrongMessageTypeError
from outbox.message import LARGEST_QUEUE, Message
from outbox.selectors import BUILT_IN
from outbox.size import DEFAULT_MAX_MESSAGE_BYTES
from outbox.statements import Plan, Rows, Statement, TextArray, load

_SQL = load("topics.sql")
_READ, _REGISTER = _SQL["read_topics"], _SQL["register_topic"]

KNOWN_FOR = 60.0
"""Seconds for which a registered topic is believed to be as it was read."""
UNKNOWN_FOR = 5.0
"""Seconds for which a topic that was not registered is not looked up again."""
_MOST_REMEMBERED = 10_000


class MessageType(StrEnum):
    """RocketMQ's message types: of a topic, what it takes; of a message, what it is."""

    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"


_TAKES = {
    MessageType.NORMAL: "messages without order key and deliver_at, not sent with ordered=True",
    MessageType.FIFO: "messages with an order key or a key, and without deliver_at",
    MessageType.DELAY: "messages with deliver_at",
    MessageType.TRANSACTION: "half messages",
}


class Topic(NamedTuple):
    """A registered topic."""

    name: str
    message_type: MessageType
    partitions: int
    selector: str | None
    max_message_bytes: int


class TopicCache:
    """What one `Outbox` remembers of the registry; any number of threads and tasks may share it."""

    def __init__(self, known_for: float = KNOWN_FOR) -> None:
        self._known_for = known_for
        self._entries: dict[str, tuple[float, Topic | None]] = {}

    def lookup(self, names: Iterable[str]) -> Plan[dict[str, Topic | None]]:
        """Answer the topics by name, reading those that are not remembered in one statement."""
        now = time.monotonic()
        found, missing = self._known(names, now)
        if missing:
            rows = yield from self._read(missing)
            self._remember(found, missing, rows, now)
        return found

    def forget(self, name: str) -> None:
        """Read the topic anew at its next use."""
        self._entries.pop(name, None)

    def _known(self, names: Iterable[str], now: float) -> tuple[dict[str, Topic | None], list[str]]:
        found: dict[str, Topic | None] = {}
        missing: list[str] = []
        for name in names:
            entry = self._entries.get(name)
            if entry is not None and entry[0] > now:
                found[name] = entry[1]
            else:
                missing.append(name)
        return found, missing

    def _remember(self, found: dict[str, Topic | None], missing: list[str], rows: Rows, now: float) -> None:
        read = {row[0]: Topic(row[0], MessageType(row[1]), *row[2:]) for row in rows}
        if len(self._entries) + len(missing) > _MOST_REMEMBERED:
            self._entries.clear()  # names made up without end must not fill the memory
        for name in missing:
            found[name] = topic = read.get(name)
            self._entries[name] = (
                now + (self._known_for if topic else min(UNKNOWN_FOR, self._known_for)),
                topic,
            )

    def _read(self, names: list[str]) -> Plan[Rows]:
        return (yield Statement(_READ, (TextArray(names),)))


def type_of(message: Message, *, ordered: bool = False, half: bool = False) -> MessageType:
    """The type of a message: half before delayed before ordered."""
    if half:
        return MessageType.TRANSACTION
    if message.deliver_at is not None:
        return MessageType.DELAY
    if ordered or message.order_key is not None:
        return MessageType.FIFO
    return MessageType.NORMAL


def require_type(topic: Topic, message: Message, *, ordered: bool = False, half: bool = False) -> None:
    """Refuse a message that the topic is not for.

    Raises:
        WrongMessageTypeError: naming both types and what the topic takes.
    """
    wanted = topic.message_type
    if wanted is MessageType.MIXED:
        return
    given = type_of(message, ordered=ordered, half=half)
    # A key orders a message too; only a FIFO topic makes that its type.
    if wanted is MessageType.FIFO and given is MessageType.NORMAL and message.key is not None:
        return
    if given is not wanted:
        raise WrongMessageTypeError(
            "topic", f"{topic.name!r} is of type {wanted}, the message of type {given}", _TAKES[wanted]
        )
    if wanted is MessageType.FIFO and message.arg_bytes is None:
        raise WrongMessageTypeError(
            "order_key", f"missing, topic {topic.name!r} is of type FIFO", _TAKES[wanted]
        )


def register(
    name: str,
    partitions: int,
    message_type: MessageType | str,
    max_message_bytes: int,
    selector: str | None,
) -> Plan[Topic]:
    """Add a topic, or change all but the partition count of a registered one.

    Raises:
        InvalidTopicError: an argument is wrong, or the topic is registered with another partition count.
    """
    try:
        checks.topic_name(name)
        wanted = MessageType(message_type)
    except OutboxError as error:
        raise InvalidTopicError(str(error)) from None
    except ValueError:
        raise InvalidTopicError(
            f"message_type: {message_type!r} is none; allowed: {', '.join(MessageType)}"
        ) from None
    for argument, number in (("partitions", partitions), ("max_message_bytes", max_message_bytes)):
        if type(number) is not int or not 0 < number <= LARGEST_QUEUE:
            raise InvalidTopicError(
                f"{argument}: {number!r}; allowed: a whole number from 1 to {LARGEST_QUEUE}"
            )
    if selector is not None and (not selector or "\0" in selector):
        raise InvalidTopicError(
            f"selector: {selector!r}; allowed: {', '.join(BUILT_IN)}, or a custom one's name"
        )
    params = (name, str(wanted), str(partitions), selector, str(max_message_bytes))
    rows = yield Statement(_REGISTER, params)
    if not rows:
        (found,) = yield Statement(_READ, (TextArray([name]),))
        raise InvalidTopicError(
            f"partitions: topic {name!r} is pinned to {found[2]}, not {partitions}; allowed: {found[2]}. "
            "Another count sends keys to other partitions and breaks their order; drain the topic and update "
            "outbox.topic by hand if that is meant"
        )
    row = rows[0]
    return Topic(row[0], MessageType(row[1]), *row[2:])


__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "MessageType",
    "Topic",
    "TopicCache",
    "register",
    "require_type",
    "type_of",
]
