"""Values by a schema of a registry: Avro, JSON Schema and Protobuf, in the wire format of Confluent's serializers.

    registry = SchemaRegistry("https://registry:8081")
    orders = AvroSchema(registry, "orders", Path("order.avsc").read_text())
    orders.load()                                     # when the service starts: reads the id of the schema
    with conn.transaction():
        outbox.send(conn, Message("orders", key="o-1", body=orders.serialize({"id": "o-1", "amount": 20})))

    PushConsumer("mails", {"orders": "*"}, listener, codecs={"orders": orders}, …)    # the listener reads message.value

A body is `0x00 | id of the schema (4 bytes) | value`; with Protobuf, the place of the message in its file is between.
The bytes in the table are those in Kafka, which any client with a deserializer of Confluent's reads.

`serialize` never asks the registry, so it holds no transaction and no event loop: it is a function of what `load` has
read, and raises SchemaNotLoadedError before. A consumer asks for each id that it does not know yet, in the
transaction of the listener, and for `timeout` at most; a failure of that is one of the message, which is parked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from outbox.codecs.schemas.references import ClosedDeserializer, ClosedSerializer
from outbox.codecs.schemas.registered import RegisteredSchema, SubjectName
from outbox.codecs.schemas.registry import SchemaRegistry
from outbox.errors import ConfigurationError
from outbox.extras import needs

with needs("schema-registry", "avro", "fastavro", "jsonschema", "google", "referencing", "requests"):
    from confluent_kafka.schema_registry import Schema, SchemaReference
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

__all__ = [
    "AvroSchema",
    "JsonSchema",
    "ProtobufSchema",
    "RegisteredSchema",
    "SchemaReference",
    "SchemaRegistry",
]


class _TextSchema(RegisteredSchema):
    """A schema that is JSON text: of Avro, or a JSON Schema."""

    kind: Literal["AVRO", "JSON"]

    def __init__(
        self,
        registry: SchemaRegistry,
        topic: str,
        schema: str | None = None,
        *,
        references: Sequence[SchemaReference] = (),
        part: Literal["value", "key"] = "value",
        subject: SubjectName = "topic",
        normalize: bool = False,
        to_dict: Callable[[Any], Any] | None = None,
        from_dict: Callable[[Any], Any] | None = None,
    ) -> None:
        """Take a schema; nothing is asked yet.

        Args:
            registry: Where it is registered.
            topic: The topic whose bodies it describes.
            schema: Its text. None: only for consumers, which then read values by the schemas that wrote them.
            references: The versions of other subjects that it refers to.
            part: Whether it describes the body or the key.
            subject: How the subject is named: topic and part (`orders-value`), the name of the record (`shop.Order`),
                or both (`orders-shop.Order`).
            normalize: Ask the registry to compare normalized schemas.
            to_dict: Makes a value of the schema out of an object of yours.
            from_dict: Makes an object of yours out of a value.

        Raises:
            ConfigurationError: naming the argument.
        """
        super().__init__(registry, topic, part=part, subject=subject, normalize=normalize)
        if schema is not None:
            try:
                json.loads(schema)
            except (TypeError, ValueError) as error:
                raise ConfigurationError(
                    f"schema: is not JSON ({error}); allowed: the text of a schema"
                ) from None
        self._schema = None if schema is None else Schema(schema, self.kind, list(references))
        self._to_dict, self._from_dict = to_dict, from_dict

    def load(self, *, register: bool = False) -> int:
        """See `RegisteredSchema.load`."""
        if self._schema is None:
            raise ConfigurationError(
                f"schema: none is given for topic {self.topic!r}, so it only reads; allowed: its text"
            )
        return super().load(register=register)

    def serialize(self, value: Any) -> bytes | None:
        """See `RegisteredSchema.serialize`."""
        return super().serialize(value if value is None or self._to_dict is None else self._to_dict(value))

    def deserialize(self, body: bytes | None, headers: Mapping[str, bytes | None] | None = None) -> Any:
        """See `RegisteredSchema.deserialize`."""
        value = super().deserialize(body, headers)
        return value if body is None or self._from_dict is None else self._from_dict(value)


class AvroSchema(_TextSchema):
    """An Avro schema. A consumer reads bodies of other versions as values of its own one, by Avro's rules."""

    kind = "AVRO"

    def _make_serializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        # Otherwise a field whose name is misspelt would be left out without a word.
        config = {**config, "validate.strict.allow.default": True}
        made: Callable[..., Any] = AvroSerializer(client, self._schema, None, config)
        return made

    def _make_deserializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = AvroDeserializer(client, self._schema, conf=config)
        return made


class JsonSchema(_TextSchema):
    """A JSON Schema. Values are validated when they are sent, and by the consumer's own schema when they are read.

    A `$ref` leads into the schema itself, or to one of `references`; an address is never fetched.
    """

    kind = "JSON"

    def _make_serializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = ClosedSerializer(self._schema, client, None, config)
        return made

    def _make_deserializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = ClosedDeserializer(self._schema, None, client, config)
        return made


class ProtobufSchema(RegisteredSchema):
    """A class that protoc has made. A topic that is read by it has messages of this class only."""

    def __init__(
        self,
        registry: SchemaRegistry,
        topic: str,
        message_class: type[Any],
        *,
        part: Literal["value", "key"] = "value",
        subject: SubjectName = "topic",
        normalize: bool = False,
    ) -> None:
        """Take a class of messages; nothing is asked yet.

        Args:
            registry: Where its file, and the files that this imports, are registered.
            topic: The topic whose bodies it describes.
            message_class: The class.
            part: Whether it describes the body or the key.
            subject: See AvroSchema.
            normalize: See AvroSchema.

        Raises:
            ConfigurationError: naming the argument.
        """
        super().__init__(registry, topic, part=part, subject=subject, normalize=normalize)
        given: object = message_class
        if not isinstance(given, type) or not hasattr(given, "DESCRIPTOR"):
            raise ConfigurationError(
                f"message_class: {message_class!r}; allowed: a class that protoc has made"
            )
        self._class = message_class

    def _probe(self) -> Any:
        return self._class()

    def _make_serializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = ProtobufSerializer(self._class, client, config)
        return made

    def _make_deserializer(self, client: Any, config: dict[str, Any]) -> Callable[..., Any]:
        made: Callable[..., Any] = ProtobufDeserializer(self._class, config, client)
        return made
