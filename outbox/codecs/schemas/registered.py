"""A schema of a topic, whatever its language: loading, the codec, and errors that name no value.

`serialize` never asks the registry: `load` builds a serializer of Confluent's on a client that only remembers. If the
process dies, or the registry, between any two lines of `load`, the schema stays as it was: not loaded, or as loaded
before; the new serializer takes its place in one assignment. What a first `load` has registered stays registered, and
the next one finds it.
"""

from __future__ import annotations

import re
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from outbox.codecs.codec import Codec, Encoded, Received
from outbox.codecs.errors import (
    CodecError,
    RegistryError,
    SchemaMismatchError,
    SchemaNotFoundError,
    SchemaNotLoadedError,
    UndecodableBodyError,
)
from outbox.codecs.schemas.references import foreign_reference
from outbox.codecs.schemas.registry import RegistryReader, Remembered, SchemaRegistry
from outbox.errors import ConfigurationError, InvalidMessageError
from outbox.extras import needs
from outbox.message import Message
from outbox.statements import Plan
from outbox.validation import topic_name

with needs("schema-registry", "confluent_kafka"):
    from confluent_kafka.schema_registry import (
        record_subject_name_strategy,
        topic_record_subject_name_strategy,
        topic_subject_name_strategy,
    )
    from confluent_kafka.serialization import SerializationContext

SubjectName = Literal["topic", "record", "topic_record"]
_STRATEGIES = {
    "topic": topic_subject_name_strategy,
    "record": record_subject_name_strategy,
    "topic_record": topic_record_subject_name_strategy,
}
_HEADERS = {"value": "__value_schema_id", "key": "__key_schema_id"}
"""Where newer serializers of Confluent may write the schema instead of in front of the body."""
_PREFIX = 5
_FIELD = re.compile(r"(?:on field|no default for|Field) ([\w.]+)")
_TOO_MANY = "more fields than the schema"


class _Loaded(NamedTuple):
    """A serializer that asks nobody."""

    serializer: Callable[..., Any]
    ids: frozenset[int]
    subject: str


class RegisteredSchema(Codec):
    """A schema of a topic in a registry; see `outbox.codecs.schemas`.

    As a codec of an `Outbox` it refuses bodies that `serialize` did not make. As a codec of a `PushConsumer` it gives
    listeners `ConsumedMessage.value`, and the body stays as it is.
    """

    def __init__(
        self, registry: SchemaRegistry, topic: str, *, part: Any, subject: str, normalize: bool
    ) -> None:
        """See the subclasses."""
        if not isinstance(registry, SchemaRegistry):
            raise ConfigurationError(f"registry: is {type(registry).__name__}; allowed: a SchemaRegistry")
        if subject not in _STRATEGIES:
            raise ConfigurationError(f"subject: {subject!r}; allowed: {', '.join(map(repr, _STRATEGIES))}")
        if part not in _HEADERS:
            raise ConfigurationError(f"part: {part!r}; allowed: 'value' or 'key'")
        try:
            self.topic = topic_name(topic)
        except InvalidMessageError as error:
            raise ConfigurationError(str(error)) from None
        self._registry, self._part, self._subject = registry, part, subject
        self._normalize = normalize
        self._context = SerializationContext(self.topic, self._part)
        self._loaded: _Loaded | None = None
        self._deserializer: Callable[..., Any] | None = None
        self._lock = threading.Lock()

    @property
    def subject(self) -> str:
        """The subject of the loaded schema.

        Raises:
            SchemaNotLoadedError: `load` was not called, or has failed.
        """
        return self._require_loaded().subject

    def load(self, *, register: bool = False) -> int:
        """Read the id of the schema from the registry, before the first `serialize`; call it again if it fails.

        It waits for the network: `await asyncio.to_thread(schema.load)`.

        Args:
            register: Register the schema, and those of Protobuf that it imports, if the subject does not have it: for
                development and tests. In production, register it when you deploy.

        Returns:
            The id of the schema.

        Raises:
            SchemaNotFoundError: the subject does not have the schema, or one that it refers to.
            SchemaRefusedError: it is not valid, or not compatible with the versions that the subject has.
            RegistryUnavailableError: the registry cannot be reached, or did not reply in time.
            RegistryError: it refuses for another reason.
            ConfigurationError: the schema cannot be read, or has no name and the subject needs one.
        """
        memory = Remembered(self._registry)
        subjects: set[str] = set()

        def subject_of(context: Any, record: Any) -> str:
            name = _STRATEGIES[self._subject](context, record)
            if name is None:
                raise ConfigurationError(
                    f"subject: {self._subject!r} needs a schema with a name (Avro) or title (JSON Schema)"
                )
            subjects.add(name)
            return str(name)

        config = {
            "auto.register.schemas": register,
            "normalize.schemas": self._normalize,
            "subject.name.strategy": subject_of,
        }
        try:
            serializer = self._make_serializer(memory, config)
        except (CodecError, ConfigurationError):
            raise
        except Exception as error:
            raise self._misread(error) from error
        try:
            serializer(self._probe(), self._context)
        except SchemaNotFoundError as error:
            if register:
                raise
            raise SchemaNotFoundError(
                f"{error}; register it when you deploy; in development: load(register=True)"
            ) from None
        except (CodecError, ConfigurationError):
            raise
        except Exception as error:
            # It reads the id first, and then finds that the probe is no value.
            if not any(map(memory.ids, subjects)):
                raise self._misread(error) from error
        memory.seal()
        (subject,) = subjects
        self._loaded = _Loaded(serializer, memory.ids(subject), subject)
        return max(self._loaded.ids)

    def serialize(self, value: Any) -> bytes | None:
        """Return a value as a body, or as a key if `part` is "key"; None, a tombstone, stays None.

        It never asks the registry.

        Raises:
            SchemaNotLoadedError: `load` was not called, or has failed.
            SchemaMismatchError: the value does not fit the schema; the text names the place, not the value.
        """
        loaded = self._require_loaded()
        try:
            made: bytes | None = loaded.serializer(value, self._context)
        except CodecError:
            raise
        except Exception as error:  # noqa: BLE001 (what serializers raise is not documented)
            raise SchemaMismatchError(
                self._foreign(error)
                or f"the value does not fit the schema of subject {loaded.subject!r}{_place_of(error)}"
            ) from None
        return made

    def deserialize(self, body: bytes | None, headers: Mapping[str, bytes | None] | None = None) -> Any:
        """Return the value of a body or key; None stays None. It asks the registry for an id that it does not know.

        Args:
            body: The bytes.
            headers: Those of the record, for producers that write the id of the schema into one.

        Raises:
            UndecodableBodyError: the body is not in the wire format, or does not fit its schema.
            SchemaNotFoundError: the registry does not know its id.
            RegistryUnavailableError: the registry cannot be reached, or did not reply in time.
            RegistryError: it refuses for another reason.
        """
        if body is None:
            return None
        name = _HEADERS[self._part]
        found = (headers or {}).get(name)
        context = SerializationContext(self.topic, self._part, None if found is None else [(name, found)])
        try:
            return self._reader()(body, context)
        except RegistryError:
            raise
        except Exception as error:  # noqa: BLE001 (a foreign body makes a deserializer raise anything)
            raise UndecodableBodyError(
                self._foreign(error)
                or f"the {self._part} does not fit {_framing(body, found)}{_place_of(error)}"
            ) from None

    def _foreign(self, error: Exception) -> str | None:
        """Return what to do about a schema that names an address, if this is what the error is about."""
        reference = foreign_reference(error)
        if reference is None:
            return None
        return (
            f"the schema of topic {self.topic!r} refers to {reference!r}, which is never fetched; register that one, "
            "and give references=[SchemaReference(…)]"
        )

    def encode(self, message: Message, body: bytes) -> Plan[Encoded]:
        """Refuse a body that this schema did not serialize.

        Raises:
            InvalidMessageError: it did not.
            SchemaNotLoadedError: `load` was not called, or has failed.
        """
        yield from ()
        loaded = self._require_loaded()
        if len(body) <= _PREFIX or body[0] != 0 or int.from_bytes(body[1:_PREFIX], "big") not in loaded.ids:
            raise InvalidMessageError(
                "body",
                f"was not serialized by the schema of subject {loaded.subject!r}, which topic {message.topic!r} has",
                "what `serialize` of the schema returns",
            )
        return Encoded(body)

    def decode(self, message: Received, body: bytes) -> Plan[bytes]:
        """Return the body as it is; `parse` reads it."""
        yield from ()
        return body

    def parse(self, message: Received, body: bytes) -> Any:
        """Return the value of a body; raises as `deserialize`."""
        name = _HEADERS[self._part]
        return self.deserialize(body, {name: message.header(name)})

    @abstractmethod
    def _make_serializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        """Make Confluent's serializer."""

    @abstractmethod
    def _make_deserializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        """Make Confluent's deserializer."""

    def _misread(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(
            f"schema: is not one for {type(self).__name__}: {type(error).__name__}: {error}"
        )

    def _probe(self) -> Any:
        """Return what makes a serializer read its id."""
        return object()

    def _reader(self) -> Callable[..., Any]:
        """Make the deserializer once: schemas that its own refers to are asked for."""
        with self._lock:
            if self._deserializer is None:
                config = {"subject.name.strategy": _STRATEGIES[self._subject]}
                self._deserializer = self._make_deserializer(RegistryReader(self._registry), config)
            return self._deserializer

    def _require_loaded(self) -> _Loaded:
        loaded = self._loaded
        if loaded is None:
            raise SchemaNotLoadedError(
                f"the schema of topic {self.topic!r} is not loaded: call load() when the service starts, outside of "
                "transactions"
            )
        return loaded

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, part={self._part!r})"


def _place_of(error: Exception) -> str:
    """Where a value does not fit, without the value, which must not get into logs."""
    cause = error.__context__
    path, rule = getattr(cause, "json_path", None), getattr(cause, "validator", None)
    if path is not None and rule is not None:
        return f": {path} breaks the rule {rule!r}"
    if _TOO_MANY in str(error):  # their names follow: of text in the place of a record, its letters
        return ": it has a field that the schema does not have"
    found = _FIELD.search(str(error))
    return f": {type(error).__name__}" + (f" on field {found[1]}" if found else "")


def _framing(body: bytes, header: bytes | None) -> str:
    if header is not None:
        return "the schema that its header names"
    if len(body) <= _PREFIX or body[0] > 1:
        return "the wire format: it does not begin with 0 and the id of a schema"
    if body[0] == 1:
        return "the schema whose GUID it begins with"
    return f"schema {int.from_bytes(body[1:_PREFIX], 'big')}"
