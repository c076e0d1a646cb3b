"""The topic registry: which types of message a topic takes, and the partition count its keys are hashed over.

Rows live in `outbox.topic`. A topic that is not there takes everything; the relay registers it, as MIXED, when it
first publishes to it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from outbox import validation
from outbox.errors import InvalidTopicError, OutboxError, WrongMessageTypeError
from outbox.message import LARGEST_QUEUE, Message
from outbox.partitioning.selectors import BUILT_IN, MURMUR2
from outbox.statements import Plan, Rows, Statement, TextArray, load
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES

_SQL = load("topics.sql")
_READ, _REGISTER = _SQL["read_topics"], _SQL["register_topic"]

KNOWN_FOR = 60.0
"""Seconds for which a registered topic is believed to be as it was read."""
UNKNOWN_FOR = 5.0
"""Seconds for which a topic that was not registered is not read again."""
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
    skip_ahead: bool = False
    """Whether a message that cannot be published holds no others of its order key."""


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

    def register_topic(
        self,
        name: str,
        partitions: int,
        message_type: MessageType | str | None = None,
        max_message_bytes: int | None = None,
        selector: str | None = None,
        *,
        skip_ahead: bool | None = None,
        move_keys: bool = False,
    ) -> Plan[Topic]:
        """Register a topic as `register` does, and read it again at its next use."""
        topic = yield from register(
            name,
            partitions,
            message_type,
            max_message_bytes,
            selector,
            skip_ahead=skip_ahead,
            move_keys=move_keys,
        )
        self.forget(topic.name)
        return topic

    def forget(self, name: str) -> None:
        """Read the topic again at its next use."""
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
    message_type: MessageType | str | None = None,
    max_message_bytes: int | None = None,
    selector: str | None = None,
    *,
    skip_ahead: bool | None = None,
    move_keys: bool = False,
    clear_selector: bool = False,
) -> Plan[Topic]:
    """Add a topic, or change what is given of a registered one; what is not given (None) stays as it is.

    Args:
        name: The topic's name.
        partitions: Its partition count, pinned once it is registered.
        message_type: Its type; a new one is MIXED by default.
        max_message_bytes: The largest record, in bytes.
        selector: Its default selector, pinned once it is registered.
        skip_ahead: Whether a message that cannot be published parks alone, and the next ones of its order key are
            published without it.
        move_keys: Let the partition count and the selector change, which sends keys to other partitions.
        clear_selector: Take the default selector away.

    Raises:
        InvalidTopicError: an argument is wrong, the change would move keys and `move_keys` was not given, or a FIFO
            topic would skip ahead.
    """
    params = _checked(
        name,
        partitions,
        message_type,
        max_message_bytes,
        selector,
        skip_ahead=skip_ahead,
        clear_selector=clear_selector,
    )
    name = validation.exact(name)
    rows = yield Statement(_REGISTER, _bound(params, skip_ahead, move_keys=move_keys, only_add=False))
    if rows:
        return _topic(rows[0])
    (found,) = yield Statement(_READ, (TextArray([name]),))
    known = _topic(found)
    wanted = known.message_type if message_type is None else MessageType(message_type)
    if wanted is MessageType.FIFO and (known.skip_ahead if skip_ahead is None else skip_ahead):
        raise InvalidTopicError(_fifo_skips(name))
    raise InvalidTopicError(_pinned(known, partitions, "" if clear_selector else selector))


def add(
    name: str,
    partitions: int,
    message_type: MessageType | str,
    max_message_bytes: int,
    selector: str | None,
    *,
    skip_ahead: bool = False,
) -> Plan[Topic | None]:
    """Add a topic unless it is registered, by the same statement as `register`; None: it is.

    Raises:
        InvalidTopicError: an argument is wrong.
    """
    params = _checked(name, partitions, message_type, max_message_bytes, selector, skip_ahead=skip_ahead)
    rows = yield Statement(_REGISTER, _bound(params, skip_ahead, move_keys=False, only_add=True))
    return _topic(rows[0]) if rows else None


def _topic(row: tuple[Any, ...]) -> Topic:
    return Topic(row[0], MessageType(row[1]), *row[2:])


def _bound(
    params: tuple[str | None, ...], skip_ahead: bool | None, *, move_keys: bool, only_add: bool
) -> tuple[str | None, ...]:
    flags = [str(flag).lower() for flag in (move_keys, only_add)]
    skips = None if skip_ahead is None else str(skip_ahead).lower()
    return (*params, *flags, str(DEFAULT_MAX_MESSAGE_BYTES), skips)


def _checked(
    name: str,
    partitions: int,
    message_type: MessageType | str | None,
    max_message_bytes: int | None,
    selector: str | None,
    *,
    skip_ahead: bool | None,
    clear_selector: bool = False,
) -> tuple[str | None, ...]:
    """Check a registration, and return it as the statement takes it."""
    try:
        name = validation.topic_name(name)
        kind = validation.exact(message_type) if isinstance(message_type, str) else message_type
        wanted = None if kind is None else MessageType(kind)
    except OutboxError as error:
        raise InvalidTopicError(str(error)) from None
    except ValueError:
        raise InvalidTopicError(
            f"message_type: {message_type!r} is not a message type; expected {', '.join(MessageType)}"
        ) from None
    for argument, number in (("partitions", partitions), ("max_message_bytes", max_message_bytes)):
        if number is None and argument == "max_message_bytes":
            continue
        if type(number) is not int or not 0 < number <= LARGEST_QUEUE:
            raise InvalidTopicError(
                f"{argument}: {number!r}; allowed: a whole number from 1 to {LARGEST_QUEUE}"
            )
    if isinstance(selector, str):
        selector = validation.exact(selector)
    if selector is not None and (not selector or "\0" in selector):
        raise InvalidTopicError(
            f"selector: {selector!r}; allowed: {', '.join(BUILT_IN)}, or a custom one's name"
        )
    if skip_ahead is not None and type(skip_ahead) is not bool:
        raise InvalidTopicError(f"skip_ahead: {skip_ahead!r}; allowed: True or False, or None to keep it")
    if skip_ahead and wanted is MessageType.FIFO:
        raise InvalidTopicError(_fifo_skips(name))
    return (
        name,
        None if wanted is None else str(wanted),
        str(partitions),
        "" if clear_selector else selector,
        None if max_message_bytes is None else str(max_message_bytes),
    )


def _fifo_skips(name: str) -> str:
    return (
        f"skip_ahead: topic {name!r} would be of type FIFO, whose messages keep their order; allowed: False, or "
        f"another type. Either of them: outbox topic alter {name} --no-skip-ahead, or --type MIXED"
    )


def _pinned(found: Topic, partitions: int, selector: str | None) -> str:
    """Say what is pinned, and how it is changed in safety."""
    if found.partitions != partitions:
        what = f"partitions: topic {found.name!r} is pinned to {found.partitions}, not {partitions}"
        allowed, option = str(found.partitions), f"--partitions {partitions}"
    else:
        what = f"selector: topic {found.name!r} is pinned to {found.selector or MURMUR2}, not {selector or MURMUR2}"
        allowed, option = (
            f"{found.selector or MURMUR2}, or None to keep it",
            f"--selector {selector or MURMUR2}",
        )
    return (
        f"{what}; allowed: {allowed}. Another one sends keys to other partitions and breaks their order; if that is "
        f"meant, drain the topic and run: outbox topic alter {found.name} {option} --move-keys"
    )


__all__ = [
    "DEFAULT_MAX_MESSAGE_BYTES",
    "MessageType",
    "Topic",
    "TopicCache",
    "add",
    "register",
    "require_type",
    "type_of",
]
