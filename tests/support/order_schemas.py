"""Orders in the three languages of schemas, and clients of Confluent's that know nothing of the outbox."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient, topic_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from outbox.codecs.schemas import AvroSchema, JsonSchema, ProtobufSchema, RegisteredSchema, SchemaRegistry

ORDER = {"id": "o-1", "amount": 20}
AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "string"}, {"name": "amount", "type": "int"}],
    }
)
AVRO_WITH_NOTE = json.dumps(
    {
        **json.loads(AVRO),
        "fields": [
            *json.loads(AVRO)["fields"],
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
AVRO_INCOMPATIBLE = json.dumps({**json.loads(AVRO), "fields": [{"name": "id", "type": "int"}]})
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "string"}, "amount": {"type": "integer"}},
        "required": ["id", "amount"],
        "additionalProperties": False,
    }
)


def _protobuf_class() -> Any:
    """Make what protoc would make of a file with `message Order` that imports another one."""
    pool = descriptor_pool.DescriptorPool()
    money = descriptor_pb2.FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    money.message_type.add(name="Money").field.add(name="cents", number=1, type=3, label=1)
    order = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto", package="shop", syntax="proto3", dependency=["shop/money.proto"]
    )
    order.message_type.add(name="Unused").field.add(name="id", number=1, type=9, label=1)
    message = order.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=9, label=1)
    message.field.add(name="amount", number=2, type=5, label=1)
    message.field.add(name="price", number=3, type=11, label=1, type_name=".shop.Money")
    for file in (money, order):
        pool.Add(file)  # type: ignore[attr-defined, unused-ignore]
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


ProtobufOrder = _protobuf_class()


@dataclass(frozen=True)
class Language:
    """One language of schemas: ours, and what a stock client does."""

    name: str
    value: Any
    schema: Callable[[SchemaRegistry, str], RegisteredSchema]
    stock_serializer: Callable[[SchemaRegistryClient, bool], Any]
    stock_deserializer: Callable[[SchemaRegistryClient], Any]

    def stock_write(self, url: str, topic: str, *, register: bool = False) -> bytes:
        """Return the body that a stock serializer makes."""
        with stock_client(url) as client:
            made: bytes = self.stock_serializer(client, register)(self.value, context(topic))
            return made

    def stock_read(self, url: str, topic: str, body: bytes | None) -> Any:
        """Return what a stock deserializer makes of a body."""
        with stock_client(url) as client:
            return self.stock_deserializer(client)(body, context(topic))


def stock_client(url: str) -> SchemaRegistryClient:
    """Return a client of Confluent's with its own defaults."""
    return SchemaRegistryClient({"url": url})


def context(topic: str, part: Any = "value") -> SerializationContext:
    """Return what serializers are given with a value."""
    return SerializationContext(topic, part)


def _config(register: bool) -> dict[str, Any]:
    return {"auto.register.schemas": register, "subject.name.strategy": topic_subject_name_strategy}


_READING = {"subject.name.strategy": topic_subject_name_strategy}

LANGUAGES = (
    Language(
        "avro",
        ORDER,
        lambda registry, topic: AvroSchema(registry, topic, AVRO),
        lambda client, register: AvroSerializer(client, AVRO, conf=_config(register)),
        lambda client: AvroDeserializer(client, conf=_READING),
    ),
    Language(
        "json",
        ORDER,
        lambda registry, topic: JsonSchema(registry, topic, JSON),
        lambda client, register: JSONSerializer(JSON, client, conf=_config(register)),
        lambda client: JSONDeserializer(JSON, schema_registry_client=client, conf=_READING),
    ),
    Language(
        "protobuf",
        ProtobufOrder(**ORDER, price={"cents": 2000}),
        lambda registry, topic: ProtobufSchema(registry, topic, ProtobufOrder),
        lambda client, register: ProtobufSerializer(ProtobufOrder, client, _config(register)),
        lambda client: ProtobufDeserializer(ProtobufOrder, _READING, client),
    ),
)


def register(url: str, subject: str, text: str, kind: str = "AVRO", references: Any = None) -> int:
    """Register a schema, as a deployment does."""
    with stock_client(url) as client:
        return int(client.register_schema(subject, Schema(text, kind, references)))
