"""What a codec is, several of them in a row, and the codecs of an outbox or a consumer by topic.

Both directions are plans, because a codec may read its keys on the connection of the transaction that sends or
consumes. So every driver and adapter runs the same code. A tombstone (body None) is never given to a codec.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from outbox.errors import ConfigurationError, InvalidMessageError
from outbox.message import Message
from outbox.statements import Plan
from outbox.validation import topic_name


class Encoded(NamedTuple):
    """What `encode` has made of a body."""

    body: bytes
    headers: Mapping[str, str] = {}
    """Added to the message's own."""
    secret: bytes = b""
    """Mixed into the digest of an idempotent send, so that an erased body cannot be guessed from its digest."""


class Received(Protocol):
    """What `decode` may know of a message; a `ConsumedMessage` is one."""

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        ...

    @property
    def key(self) -> bytes | None:
        """The record's key."""
        ...

    @property
    def message_id(self) -> UUID:
        """Its id."""
        ...

    def header(self, name: str) -> bytes | None:
        """Return the value of the first header of this name."""
        ...


class Codec(ABC):
    """Turns bodies into others before they are written, and back before a listener is called.

    One object serves any number of threads.
    """

    header_names: frozenset[str] = frozenset()
    """The headers that it writes; a message that brings one of them is refused."""
    blocks: bool = False
    """Whether it waits for something other than the database. `AsyncOutbox` then runs it in a thread."""

    @abstractmethod
    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        """Encode a body.

        Args:
            message: As the application made it.
            body: What to encode: the message's body, or what the codec before made of it.
        """

    @abstractmethod
    def decode(self, message: Received, body: bytes) -> Plan[bytes]:
        """Return the body that was encoded.

        Raises:
            ErasedError: it can never be decoded again; the consumer discards the message.
            Exception: anything else counts as a failure of the listener, and is tried again as one.
        """

    def parse(self, message: Received, body: bytes) -> Any:
        """Return what the listener gets as `ConsumedMessage.value`; None unless the codec reads values.

        Args:
            message: As it was read.
            body: What `decode` has returned.

        Raises:
            Exception: as `decode`.
        """
        return None


class Chain(Codec):
    """Several codecs: the first one encodes first and decodes last."""

    def __init__(self, *codecs: Codec) -> None:
        """Put codecs in a row.

        Raises:
            ConfigurationError: something is not a codec, or two of them write the same header.
        """
        names: list[str] = []
        for place, codec in enumerate(codecs):
            _require_codec(f"codecs[{place}]", codec)
            names += codec.header_names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice or not codecs:
            raise ConfigurationError(
                f"codecs: {f'two of them write {twice[0]!r}' if twice else 'is empty'}; "
                "allowed: one or more codecs, each of a kind of its own"
            )
        self._codecs = codecs
        self.header_names = frozenset(names)
        self.blocks = any(codec.blocks for codec in codecs)

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        """See `Codec`."""
        headers: dict[str, str] = {}
        secret = b""
        for codec in self._codecs:
            made = yield from codec.encode(message, body)
            body, secret = made.body, secret + made.secret
            headers |= made.headers
        return Encoded(body, headers, secret)

    def decode(self, message: Received, body: bytes) -> Plan[bytes]:
        """See `Codec`."""
        for codec in reversed(self._codecs):
            body = yield from codec.decode(message, body)
        return body

    def parse(self, message: Received, body: bytes) -> Any:
        """Return the value that the first codec reads: the one that stands next to the listener."""
        return self._codecs[0].parse(message, body)


class Coded(NamedTuple):
    """A message as its row has it, and the secret of its digest."""

    message: Message
    secret: bytes


class Codecs:
    """The codecs of one outbox or consumer, by topic."""

    def __init__(self, by_topic: Mapping[str, Codec]) -> None:
        """Check names and codecs once.

        Raises:
            ConfigurationError: a topic has no legal name, or something is not a codec.
        """
        if not isinstance(by_topic, Mapping):
            raise ConfigurationError(
                f"codecs: is {type(by_topic).__name__}; allowed: codecs by topic, such as "
                "{'customers': Encryption(…)}"
            )
        self._by_topic = {}
        for topic, codec in by_topic.items():
            try:
                name = topic_name(topic)
            except InvalidMessageError as error:
                raise ConfigurationError(f"codecs: {error}") from None
            _require_codec(f"codecs[{name!r}]", codec)
            self._by_topic[name] = codec
        self.blocks = any(codec.blocks for codec in by_topic.values())
        """Whether one of them waits for something other than the database."""

    @property
    def topics(self) -> Iterable[str]:
        """The topics that have one."""
        return self._by_topic.keys()

    def of(self, topic: str) -> Codec | None:
        """Return the codec of a topic; None: its bodies are sent as they are."""
        return self._by_topic.get(topic)

    def encode(self, message: Message) -> Plan[Coded | None]:
        """Encode a message; None: it is written as it is.

        Raises:
            InvalidMessageError: the message brings a header that the codec writes.
        """
        codec, body = self._by_topic.get(message.topic), message.body_bytes
        if codec is None or body is None:
            return None
        for name in sorted(codec.header_names & set(message.headers or ())):
            raise InvalidMessageError(
                "headers",
                f"{name!r} is written by the codec of topic {message.topic!r}",
                "headers of other names",
            )
        made = yield from codec.encode(message, body)
        headers: dict[str, Any] = {**(message.headers or {}), **made.headers}
        return Coded(replace(message, body=made.body, headers=headers), made.secret)


def codecs_of(by_topic: Mapping[str, Codec] | None) -> Codecs | None:
    """Return the codecs that were given; None without any, so that a send without codecs pays for nothing.

    Raises:
        ConfigurationError: see `Codecs`.
    """
    return None if by_topic is None else Codecs(by_topic)


def _require_codec(argument: str, codec: object) -> None:
    if not isinstance(codec, Codec):
        given = codec.__name__ if isinstance(codec, type) else type(codec).__name__
        raise ConfigurationError(
            f"{argument}: is {given}; allowed: an object of a subclass of outbox.codecs.Codec"
        )
