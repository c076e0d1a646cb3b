"""Schemas at a real registry: what is registered, what is refused, and who reads whose bodies."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer

from outbox import Message
from outbox.codecs import (
    SchemaMismatchError,
    SchemaNotFoundError,
    SchemaNotLoadedError,
    SchemaRefusedError,
    UndecodableBodyError,
)
from outbox.codecs.schemas import AvroSchema, JsonSchema, ProtobufSchema, SchemaReference, SchemaRegistry
from outbox.errors import ConfigurationError, InvalidMessageError
from tests.support.encrypted_bodies import KeyTable
from tests.support.order_schemas import (
    AVRO,
    AVRO_INCOMPATIBLE,
    AVRO_WITH_NOTE,
    JSON,
    LANGUAGES,
    ORDER,
    Language,
    ProtobufOrder,
    context,
    register,
    stock_client,
)

pytestmark = [pytest.mark.xdist_group("schema registry"), pytest.mark.feature("H-27")]
DRAFT = "http://json-schema.org/draft-07/schema#"
every_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)


@every_language
def test_a_body_is_the_same_as_that_of_a_stock_serializer_and_both_are_read_by_both(
    language: Language, schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    url = schema_registry.url
    stock = language.stock_write(url, schema_topic, register=True)
    schema = language.schema(schema_registry, schema_topic)
    number = schema.load()
    body = schema.serialize(language.value)
    assert body == stock
    assert body is not None
    assert body[:5] == b"\0" + number.to_bytes(4, "big")
    assert language.stock_read(url, schema_topic, body) == language.value
    assert schema.deserialize(stock) == language.value
    assert (schema.serialize(None), schema.deserialize(None)) == (None, None)
    assert schema.subject == f"{schema_topic}-value"


@every_language
def test_loading_registers_nothing_unless_it_is_asked_to(
    language: Language, schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    schema = language.schema(schema_registry, schema_topic)
    with pytest.raises(SchemaNotFoundError, match=r"register it .*load\(register=True\)"):
        schema.load()
    with pytest.raises(SchemaNotLoadedError, match=r"call load\(\)"):
        schema.serialize(language.value)
    with stock_client(schema_registry.url) as client:
        assert f"{schema_topic}-value" not in client.get_subjects()
    number = schema.load(register=True)
    assert language.schema(schema_registry, schema_topic).load() == number


def test_a_schema_that_breaks_earlier_readers_is_refused_and_the_loaded_one_goes_on(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    orders = AvroSchema(schema_registry, schema_topic, AVRO)
    orders.load(register=True)
    with stock_client(schema_registry.url) as client:
        client.set_compatibility(f"{schema_topic}-value", "BACKWARD")
    with pytest.raises(SchemaRefusedError, match="ncompatible"):
        AvroSchema(schema_registry, schema_topic, AVRO_INCOMPATIBLE).load(register=True)
    assert orders.deserialize(orders.serialize(ORDER)) == ORDER


def test_readers_of_another_version_get_values_of_their_own(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    old = AvroSchema(schema_registry, schema_topic, AVRO)
    new = AvroSchema(schema_registry, schema_topic, AVRO_WITH_NOTE)
    old.load(register=True)
    new.load(register=True)
    noted = {**ORDER, "note": "ring twice"}
    assert new.deserialize(old.serialize(ORDER)) == {**ORDER, "note": None}
    assert old.deserialize(new.serialize(noted)) == ORDER
    as_written = AvroSchema(schema_registry, schema_topic)
    assert as_written.deserialize(new.serialize(noted)) == noted
    with pytest.raises(ConfigurationError, match="only reads"):
        as_written.load()


@pytest.mark.parametrize(
    ("subject", "expected"),
    [("topic", "{topic}-value"), ("record", "shop.{name}"), ("topic_record", "{topic}-shop.{name}")],
)
def test_subjects_have_the_names_of_each_strategy(
    subject: Literal["topic", "record", "topic_record"],
    expected: str,
    schema_registry: SchemaRegistry,
    schema_topic: str,
) -> None:
    name = f"Order{schema_topic.removeprefix('orders-')}"
    text = json.dumps({**json.loads(AVRO), "name": name})
    orders = AvroSchema(schema_registry, schema_topic, text, subject=subject)
    orders.load(register=True)
    assert orders.subject == expected.format(topic=schema_topic, name=name)
    with stock_client(schema_registry.url) as client:
        assert orders.subject in client.get_subjects()
    assert orders.deserialize(orders.serialize(ORDER)) == ORDER


def test_a_schema_without_a_name_has_no_subject_of_its_record(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    nameless = JsonSchema(schema_registry, schema_topic, '{"type": "object"}', subject="record")
    with pytest.raises(ConfigurationError, match="title"):
        nameless.load(register=True)


def test_a_key_has_a_schema_of_its_own(schema_registry: SchemaRegistry, schema_topic: str) -> None:
    keys = AvroSchema(schema_registry, schema_topic, AVRO, part="key")
    keys.load(register=True)
    assert keys.subject == f"{schema_topic}-key"
    key = keys.serialize(ORDER)
    assert keys.deserialize(key) == ORDER
    with stock_client(schema_registry.url) as client:
        strategy = {"auto.register.schemas": False, "subject.name.strategy": lambda *_: f"{schema_topic}-key"}
        assert AvroSerializer(client, AVRO, conf=strategy)(ORDER, context(schema_topic, "key")) == key


def test_avro_schemas_refer_to_schemas_of_other_subjects(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    name = f"Money{schema_topic.removeprefix('orders-')}"
    money = {
        "type": "record",
        "name": name,
        "namespace": "shop",
        "fields": [{"name": "cents", "type": "int"}],
    }
    reference = SchemaReference(f"shop.{name}", f"shop.{name}", 1)
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": f"shop.{name}"}]}
    bills = AvroSchema(schema_registry, schema_topic, json.dumps(bill), references=[reference])
    with pytest.raises(SchemaNotFoundError):
        bills.load(register=True)
    register(schema_registry.url, f"shop.{name}", json.dumps(money))
    bills.load(register=True)
    body = bills.serialize({"sum": {"cents": 5}})
    assert bills.deserialize(body) == {"sum": {"cents": 5}}
    assert AvroSchema(schema_registry, schema_topic).deserialize(body) == {"sum": {"cents": 5}}


def test_json_schemas_refer_to_schemas_of_other_subjects(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    subject = f"money-{schema_topic}"
    register(
        schema_registry.url,
        subject,
        json.dumps({"$schema": DRAFT, "type": "object", "required": ["cents"]}),
        "JSON",
    )
    text = json.dumps({"$schema": DRAFT, "type": "object", "properties": {"sum": {"$ref": "money.json"}}})
    reference = SchemaReference("money.json", subject, 1)
    bills = JsonSchema(schema_registry, schema_topic, text, references=[reference])
    bills.load(register=True)
    assert bills.deserialize(bills.serialize({"sum": {"cents": 5}})) == {"sum": {"cents": 5}}
    with pytest.raises(SchemaMismatchError, match=r"\$\.sum breaks the rule 'required'"):
        bills.serialize({"sum": {}})


@pytest.mark.parametrize(
    ("text", "value", "place"),
    [
        (AVRO, {"id": "o-1", "amount": "SECRET"}, "on field amount"),
        (AVRO, {"id": "SECRET"}, "on field amount"),
        (AVRO, {"id": "o-1", "amount": 1, "amuont": "SECRET"}, "field that the schema does not have"),
        (AVRO, "SECRET", "field that the schema does not have"),
        (AVRO_WITH_NOTE, {"id": "o-1", "amount": 1, "note": ["SECRET"]}, "on field note"),
        (JSON, {"id": "o-1", "amount": "SECRET"}, r"\$\.amount breaks the rule 'type'"),
        (JSON, {"id": "o-1", "amount": 1, "amuont": "SECRET"}, "additionalProperties"),
        (None, ORDER, "ValueError"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_its_place_and_never_shown(
    text: str | None, value: Any, place: str, schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    kind = AvroSchema if text in {AVRO, AVRO_WITH_NOTE} else JsonSchema
    orders = (
        ProtobufSchema(schema_registry, schema_topic, ProtobufOrder)
        if text is None
        else kind(schema_registry, schema_topic, text)
    )
    orders.load(register=True)
    with pytest.raises(SchemaMismatchError, match=place) as caught:
        orders.serialize(value)
    assert "SECRET" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@every_language
def test_a_foreign_body_is_undecodable_and_a_foreign_id_unknown(
    language: Language, schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    schema = language.schema(schema_registry, schema_topic)
    schema.load(register=True)
    body = schema.serialize(language.value)
    assert body is not None
    for foreign in (b"", b"\0", b'{"id": "SECRET"}', b"\2" + body[1:], body[:-3], body[:6] + b"\xff" * 20):
        with pytest.raises(UndecodableBodyError) as caught:
            schema.deserialize(foreign)
        assert "SECRET" not in str(caught.value)
    with pytest.raises(SchemaNotFoundError):
        schema.deserialize(b"\0\x7f\xff\xff\xff" + body[5:])


def test_an_outbox_refuses_bodies_that_its_schema_did_not_serialize(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    orders, table = AvroSchema(schema_registry, schema_topic, AVRO), KeyTable()
    other = AvroSchema(schema_registry, schema_topic, AVRO_WITH_NOTE)
    with pytest.raises(SchemaNotLoadedError):
        table.encoded(orders, Message(schema_topic, "k", b"\0"))
    orders.load(register=True)
    other.load(register=True)
    good = orders.serialize(ORDER)
    assert table.encoded(orders, Message(schema_topic, "k", good)).body == good
    for bad in (json.dumps(ORDER), b"", b"\0\0\0\0", b"\1" + (good or b"")[1:], other.serialize(ORDER)):
        with pytest.raises(InvalidMessageError, match="`serialize`"):
            table.encoded(orders, Message(schema_topic, "k", bad))


def test_objects_of_the_application_are_converted_on_the_way(
    schema_registry: SchemaRegistry, schema_topic: str
) -> None:
    orders = AvroSchema(
        schema_registry,
        schema_topic,
        AVRO,
        to_dict=lambda pair: {"id": pair[0], "amount": pair[1]},
        from_dict=lambda value: (value["id"], value["amount"]),
    )
    orders.load(register=True)
    assert orders.deserialize(orders.serialize(("o-1", 20))) == ("o-1", 20)
    assert (orders.serialize(None), orders.deserialize(None)) == (None, None)
