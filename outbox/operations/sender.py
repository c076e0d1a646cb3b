"""What one `Outbox` knows when it writes a message: its producer group, its selectors and the registry it remembers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from outbox.codecs.codec import Codec, Coded, codecs_of
from outbox.errors import (
    ConfigurationError,
    InvalidGroupError,
    InvalidMessageError,
    MessageTooLargeError,
    SelectorError,
)
from outbox.message import Message
from outbox.operations import topics
from outbox.operations.custom_selectors import MessageQueueSelector, Selectors, evaluate, require_selector
from outbox.operations.groups import Registry, require_name
from outbox.operations.rows import Row, row_of
from outbox.operations.size import require_fitting
from outbox.operations.topics import KNOWN_FOR, Topic
from outbox.partitioning.lanes import lane_of
from outbox.partitioning.selectors import JAVA_HASH
from outbox.tracing import Tracing
from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES


class Admitted(NamedTuple):
    """A message that may be written: its row, and what its receipt needs."""

    message: Message
    row: Row
    queue: int | None
    secret: bytes = b""
    """Of the codec, for the digest of an idempotent send."""

    @property
    def lane(self) -> str:
        """The row's lane, as statements take it."""
        return str(lane_of(self.message.topic, self.queue, self.message.arg_bytes))


class Sender:
    """The configuration of one `Outbox`, which its operations share; any number of threads may use one."""

    def __init__(
        self,
        producer_group: str | None = None,
        *,
        selectors: Mapping[str, MessageQueueSelector] | None = None,
        topic_ttl: float = KNOWN_FOR,
        codecs: Mapping[str, Codec] | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """Check the configuration of an `Outbox`.

        Args:
            producer_group: Goes with every message; idempotency keys are unique within it.
            selectors: Custom message queue selectors by name.
            topic_ttl: Seconds for which the registration of a topic, and of the group, is remembered.
            codecs: Encode bodies, by topic.
            tracing: Gives messages the trace that runs when they are sent.

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
        self.registry = Registry(self.producer_group, topic_ttl)
        self.codecs, self._tracing = codecs_of(codecs), tracing
        self.blocks = self.codecs is not None and self.codecs.blocks
        """Whether a codec waits for something other than the database."""

    def admit(
        self,
        message: Message,
        topic: Topic | None,
        *,
        ordered: bool,
        chooser: MessageQueueSelector | None = None,
        coded: Coded | None = None,
    ) -> Admitted:
        """Check a message against its topic, and let a custom selector choose its partition.

        Args:
            message: What will be sent.
            topic: Its registration.
            ordered: Whether the caller asks for a lock of the order key.
            chooser: The selector of this call, for a message that names none.
            coded: What a codec has made of the message, if its topic has one; the row holds that.

        Raises:
            ConfigurationError: the chooser cannot be called.
            InvalidMessageError: the topic does not take the message, or a selector cannot place it.
        """
        if ordered and message.arg_bytes is None:
            raise InvalidMessageError(
                "order_key", "missing, ordered=True has nothing to order by", "order_key or key"
            )
        if chooser is not None and (message.selector is not None or message.queue is not None):
            raise InvalidMessageError(
                "selector", "is given for the call, and the message has one or a queue", "only one of them"
            )
        limit = DEFAULT_MAX_MESSAGE_BYTES
        selector, queue = message.selector, message.queue
        if topic is not None:
            limit = topic.max_message_bytes
            topics.require_type(topic, message, ordered=ordered)
            if queue is not None and queue >= topic.partitions:
                raise InvalidMessageError(
                    "queue",
                    f"{queue} is out of range for topic {topic.name!r}",
                    f"0 to {topic.partitions - 1}",
                )
            if selector is None and queue is None:
                selector = topic.selector
        if chooser is not None:
            selector = require_selector(chooser)
            queue = evaluate(chooser, selector, _partitions(selector, message, topic), message, message.arg)
        elif selector is not None:
            self._require_usable(selector, message)
            if self._selectors.is_custom(selector):
                queue = self._selectors.choose(
                    selector, _partitions(selector, message, topic), message, message.arg
                )
        written, secret = (message, b"") if coded is None else coded
        chosen = queue if message.queue is None else None
        require_fitting(written, self.producer_group, limit, chosen)
        if self._tracing is not None:
            written = self._traced(self._tracing, written, limit, chosen)
        return Admitted(message, row_of(written, selector, queue, self.producer_group), queue, secret)

    def _traced(self, tracing: Tracing, message: Message, limit: int, chosen: int | None) -> Message:
        """Return the message with its trace; without it if the topic would not take that."""
        traced = tracing.created(message)
        try:
            require_fitting(traced, self.producer_group, limit, chosen)
        except MessageTooLargeError:
            return message
        return traced

    def _require_usable(self, selector: str, message: Message) -> None:
        self._selectors.require_usable(selector, message.arg_bytes)
        if selector == JAVA_HASH and isinstance(message.arg, int):
            # The row holds its decimal text, whose hash is not that of a Java Integer or Long.
            raise SelectorError(
                "order_key",
                "is int, and selector 'java_hash' hashes text",
                "str; for a whole number: 'modulo'",
            )


def _partitions(selector: str, message: Message, topic: Topic | None) -> int:
    if topic is None:
        raise SelectorError(
            "selector",
            f"{selector!r} needs the partition count of topic {message.topic!r}, which is not registered",
            f"register_topic(conn, {message.topic!r}, partitions) once, or a built-in selector",
        )
    return topic.partitions
