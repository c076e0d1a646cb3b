"""Sending as logic without I/O: what is checked, and which statements run, for every driver alike.

Everything is checked before the first statement that writes is yielded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from outbox.errors import ConfigurationError, InvalidGroupError, InvalidMessageError, SelectorError
from outbox.message import Message
from outbox.operations import topics
from outbox.operations.custom_selectors import MessageQueueSelector, Selectors
from outbox.operations.groups import require_name
from outbox.operations.idempotency import require_key, send_once
from outbox.operations.ordering import MOST_ORDERED_KEYS, lock_order_keys, recount, too_many_keys
from outbox.operations.rows import Row, columns_of, row_of
from outbox.operations.size import require_fitting
from outbox.operations.topics import KNOWN_FOR, MessageType, Topic, TopicCache
from outbox.partitioning.lanes import lane_of
from outbox.receipt import Receipt
from outbox.statements import Plan, Statement, TextArray, load
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES

_SQL = load("send.sql")
_SEND, _SEND_WITH_ID, _SEND_ORDERED = _SQL["send"], _SQL["send_with_message_id"], _SQL["send_ordered"]

CHUNK_MESSAGES = 1000
"""Messages per statement of `send_many`: larger ones are not faster (docs/adr/0010)."""
CHUNK_BYTES = 4 * 1024 * 1024
"""Bytes of bodies per statement of `send_many`, which bounds the memory that one takes."""


class _Admitted(NamedTuple):
    """A message that may be written: its row, and what its receipt needs."""

    message: Message
    row: Row
    queue: int | None


class Sending:
    """The core that `Outbox` and `AsyncOutbox` share: configuration, and plans for drivers to run."""

    def __init__(
        self,
        producer_group: str | None = None,
        *,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        topic_ttl: float = KNOWN_FOR,
    ) -> None:
        """Configure an outbox; it opens nothing and keeps no connection, so one serves any number of threads.

        Args:
            producer_group: Who sends: goes with every message; idempotency keys are unique within it.
            selectors: Custom message queue selectors by name, see `outbox.operations.custom_selectors`.
            topic_ttl: Seconds for which a topic's registration is remembered.

        Raises:
            ConfigurationError: naming the argument.
        """
        try:
            self.producer_group = (
                None if producer_group is None else require_name("producer_group", producer_group)
            )
        except InvalidGroupError as error:
            raise ConfigurationError(str(error)) from None
        if not topic_ttl >= 0:
            raise ConfigurationError(f"topic_ttl: {topic_ttl!r}; allowed: seconds, 0 or more")
        self._selectors = Selectors(selectors)
        self._topics = TopicCache(topic_ttl)

    def _send(self, message: Message, *, ordered: bool, idempotency_key: str | None) -> Plan[Receipt]:
        _require_message(message)
        if idempotency_key is not None:
            require_key(idempotency_key, self.producer_group, message)
        registered = yield from self._topics.lookup((message.topic,))
        admitted = self._admit(message, registered[message.topic], ordered)
        if idempotency_key is not None:
            if ordered:
                yield from lock_order_keys([message])
            return (yield from send_once(*admitted, idempotency_key))
        row = admitted.row
        if message.message_id is not None:
            if ordered:
                yield from lock_order_keys([message])
            rows = yield Statement(_SEND_WITH_ID, (*row, str(message.message_id)))
        elif ordered:
            statement = Statement(
                _SEND_ORDERED, (*row, _lane(admitted), message.arg_bytes, MOST_ORDERED_KEYS)
            )
            rows = yield statement
            if not rows:
                yield recount([message])
                rows = yield statement
            if not rows:
                raise too_many_keys()
        else:
            rows = yield Statement(_SEND, (*row, _lane(admitted)))
        id, message_id = rows[0]
        return Receipt(id, message_id, message.topic, admitted.queue)

    def _send_many(self, messages: Iterable[Message], *, ordered: bool) -> Plan[list[Receipt]]:
        wanted = _listed(messages)
        registered = yield from self._topics.lookup({message.topic for message in wanted})
        admitted: list[_Admitted] = []
        try:
            for message in wanted:
                admitted.append(self._admit(message, registered[message.topic], ordered))
        except InvalidMessageError as error:
            error.args = (f"messages[{len(admitted)}]: {error}",)
            raise
        if ordered and wanted:
            yield from lock_order_keys(wanted)
        receipts: list[Receipt] = []
        for chunk in _chunks(admitted):
            params = columns_of([each.row for each in chunk])
            if chunk[0].message.message_id is None:
                lanes = TextArray([_lane(each) for each in chunk])
                rows = yield Statement(_SQL["send_many"], [*params, lanes])
            else:
                ids = TextArray([str(each.message.message_id) for each in chunk])
                rows = yield Statement(_SQL["send_many_with_message_id"], [*params, ids])
            # Ids were given out in the order of the list, so sorting by id is the list's order, come what may.
            rows.sort()
            receipts += (
                Receipt(id, message_id, each.message.topic, each.queue)
                for (id, message_id), each in zip(rows, chunk, strict=True)
            )
        return receipts

    def _register_topic(
        self,
        name: str,
        partitions: int,
        message_type: MessageType | str | None,
        max_message_bytes: int | None,
        selector: str | None,
        *,
        move_keys: bool,
    ) -> Plan[Topic]:
        topic = yield from topics.register(
            name, partitions, message_type, max_message_bytes, selector, move_keys=move_keys
        )
        self._topics.forget(name)
        return topic

    def _admit(self, message: Message, topic: Topic | None, ordered: bool) -> _Admitted:
        """Check a message against its topic and let a custom selector choose."""
        if ordered and message.arg_bytes is None:
            raise InvalidMessageError(
                "order_key", "missing, ordered=True has nothing to order by", "order_key or key"
            )
        limit = DEFAULT_MAX_MESSAGE_BYTES
        selector, queue = message.selector, message.queue
        if topic is not None:
            limit = topic.max_message_bytes
            topics.require_type(topic, message, ordered=ordered)
            if queue is not None and queue >= topic.partitions:
                raise InvalidMessageError(
                    "queue", f"{queue} is no partition of {topic.name!r}", f"0 to {topic.partitions - 1}"
                )
            if selector is None and queue is None:
                selector = topic.selector
        if selector is not None:
            self._selectors.require_usable(selector, message.arg_bytes)
            if self._selectors.is_custom(selector):
                queue = self._choose(selector, message, topic)
        require_fitting(message, self.producer_group, limit)
        return _Admitted(message, row_of(message, selector, queue, self.producer_group), queue)

    def _choose(self, selector: str, message: Message, topic: Topic | None) -> int:
        if topic is None:
            raise SelectorError(
                "selector",
                f"{selector!r} needs the partition count of topic {message.topic!r}, which is not registered",
                f"register_topic(conn, {message.topic!r}, partitions) once, or a built-in selector",
            )
        return self._selectors.choose(selector, topic.partitions, message, message.arg)


def _lane(admitted: _Admitted) -> str:
    return str(lane_of(admitted.message.topic, admitted.queue, admitted.message.arg_bytes))


def _listed(messages: Any) -> list[Message]:
    """The messages of `send_many`, each of them looked at."""
    if isinstance(messages, Message) or not isinstance(messages, Iterable):
        raise InvalidMessageError(
            "messages",
            f"is {type(messages).__name__}",
            "a list of messages; one message is sent by send(conn, message)",
        )
    listed = list(messages)
    for index, message in enumerate(listed):
        if not isinstance(message, Message):
            raise InvalidMessageError(f"messages[{index}]", f"is {type(message).__name__}", "outbox.Message")
    return listed


def _require_message(message: Any) -> None:
    if not isinstance(message, Message):
        raise InvalidMessageError("message", f"is {type(message).__name__}", "outbox.Message")


def _chunks(admitted: list[_Admitted]) -> Iterator[list[_Admitted]]:
    """Cut at a number of messages, at a number of bytes, and where own message ids begin or end."""
    chunk: list[_Admitted] = []
    size = 0
    for each in admitted:
        length = len(each.message.body_bytes or b"")
        if chunk and (
            len(chunk) >= CHUNK_MESSAGES
            or size + length > CHUNK_BYTES
            or (chunk[-1].message.message_id is None) != (each.message.message_id is None)
        ):
            yield chunk
            chunk, size = [], 0
        chunk.append(each)
        size += length
    if chunk:
        yield chunk
