"""The client of a schema registry: what it refuses, and what it makes of replies, without a registry."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from outbox.codecs import (
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
    SchemaNotLoadedError,
    SchemaRefusedError,
)
from outbox.codecs.schemas import AvroSchema, JsonSchema, ProtobufSchema, SchemaRegistry
from outbox.codecs.schemas.registry import Remembered
from outbox.errors import ConfigurationError
from tests.support.encrypted_bodies import KeyTable, Record
from tests.support.guarded_registry import Reply, serving
from tests.support.order_schemas import AVRO, AVRO_WITH_NOTE, ORDER

pytestmark = pytest.mark.feature("H-27")


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """A registry at which nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with SchemaRegistry(f"http://127.0.0.1:{bound.getsockname()[1]}") as registry:
            yield registry


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"url": "registry:8081"}, "url"),
        ({"url": "ftp://registry"}, "url"),
        ({"url": ""}, "url"),
        ({"url": 3}, "url"),
        ({"url": "http://[broken"}, "url"),
        ({"url": "http://r:port"}, "url"),
        ({"url": "http://a:SECRET@r1,http://b:SECRET@r2"}, "url"),
        ({"url": "http://r", "timeout": 0}, "timeout"),
        ({"url": "http://r", "timeout": 61}, "timeout"),
        ({"url": "http://r", "config": {"timeout": 3}}, "config"),
        ({"url": "http://r", "config": {"max.retries": 9}}, "config"),
        ({"url": "http://r", "config": {"sasl.password": "SECRET"}}, "config"),
        ({"url": "http://r", "config": {"basic.auth.user.info": "SECRET"}}, "config"),
        ({"url": "http://r", "config": {"ssl.ca.location": "/nowhere"}}, "config"),
    ],
)
def test_settings_that_cannot_work_are_refused_and_not_shown(arguments: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name}: ") as caught:
        SchemaRegistry(**arguments)
    assert "SECRET" not in str(caught.value)


def test_addresses_lose_their_password_and_stay_whole_otherwise() -> None:
    with SchemaRegistry("https://u:p%40@r1:8081/path/, https://u:p%40@[::1]") as registry:
        assert registry.url == "https://r1:8081/path,https://[::1]"
        assert repr(registry) == f"SchemaRegistry({registry.url!r})"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"registry": "http://r"}, "registry"),
        ({"topic": "a b"}, "topic"),
        ({"schema": "not json"}, "schema"),
        ({"part": "header"}, "part"),
        ({"subject": "associated"}, "subject"),
    ],
)
def test_schemas_that_cannot_work_are_refused(
    arguments: dict[str, Any], name: str, registry: SchemaRegistry
) -> None:
    given: dict[str, Any] = {"registry": registry, "topic": "orders", "schema": AVRO, **arguments}
    for kind in (AvroSchema, JsonSchema):
        with pytest.raises(ConfigurationError, match=name):
            kind(**given)
    with pytest.raises(ConfigurationError, match="message_class"):
        ProtobufSchema(registry, "orders", dict)


def test_a_schema_that_its_language_does_not_know_never_reaches_the_registry(
    registry: SchemaRegistry,
) -> None:
    with pytest.raises(ConfigurationError, match="is not one for AvroSchema"):
        AvroSchema(registry, "orders", '{"type": "recrod"}').load()


def test_nothing_is_serialized_before_it_is_loaded(registry: SchemaRegistry) -> None:
    orders = AvroSchema(registry, "orders", AVRO)
    for call in (lambda: orders.serialize(ORDER), lambda: orders.serialize(None), lambda: orders.subject):
        with pytest.raises(SchemaNotLoadedError, match=r"'orders' is not loaded: call load\(\)"):
            call()
    with pytest.raises(RegistryUnavailableError, match="refused"):
        orders.load()
    with pytest.raises(SchemaNotLoadedError):
        orders.serialize(ORDER)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(500), RegistryUnavailableError),
        (Reply(503, b"<html>", "text/html"), RegistryUnavailableError),
        (Reply(429), RegistryUnavailableError),
        (Reply(200, b"<html>", "text/html"), RegistryUnavailableError),
        (Reply(401), RegistryError),
        (Reply(403), RegistryError),
        (Reply(400), RegistryError),
        (Reply(404, b'{"error_code": 40403, "message": "Schema not found"}'), SchemaNotFoundError),
        (Reply(409, b'{"error_code": 409, "message": "incompatible"}'), SchemaRefusedError),
        (Reply(422), SchemaRefusedError),
    ],
)
def test_a_reply_becomes_an_error_of_its_kind_and_is_asked_for_once(
    reply: Reply, kind: type[RegistryError]
) -> None:
    asked: list[str] = []

    def respond(method: str, path: str, body: bytes | None, login: str | None) -> Reply:
        asked.append(path)
        return reply

    refused = pytest.raises(RegistryError)
    with (
        serving(respond) as place,
        SchemaRegistry(f"http://{place}", timeout=30) as registry,
        refused as caught,
    ):
        AvroSchema(registry, "orders", AVRO).load()
    assert type(caught.value) is kind
    assert len(asked) == 1


def test_a_registry_that_accepts_and_never_replies_is_given_up() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        timed_out = pytest.raises(RegistryUnavailableError, match="ReadTimeout")
        with SchemaRegistry(url, timeout=0.1) as registry, timed_out:
            AvroSchema(registry, "orders", AVRO).load()


def test_another_address_of_the_cluster_stands_in() -> None:
    found = Reply(
        200, json.dumps({"id": 7, "subject": "orders-value", "version": 1, "schema": AVRO}).encode()
    )
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with serving(lambda *_: found) as place:
            urls = f"http://127.0.0.1:{bound.getsockname()[1]},http://{place}"
            with SchemaRegistry(urls, timeout=30) as registry:
                assert AvroSchema(registry, "orders", AVRO).load() == 7


def test_serializing_asks_the_registry_for_nothing_and_remembers_nothing_more() -> None:
    asked: list[str] = []

    def respond(method: str, path: str, body: bytes | None, login: str | None) -> Reply:
        asked.append(f"{method} {path.partition('?')[0]}")
        return Reply(200, json.dumps({"id": 7, "subject": "s", "version": 1, "schema": AVRO}).encode())

    with serving(respond) as place, SchemaRegistry(f"http://{place}", timeout=30) as registry:
        orders = AvroSchema(registry, "orders", AVRO)
        orders.load()
        bodies = {orders.serialize(ORDER) for _ in range(100)}
    assert asked == ["POST /subjects/orders-value"]
    assert bodies == {orders.serialize(ORDER)}


def test_what_a_serializer_was_not_given_while_it_was_loaded_it_does_not_get_later(
    registry: SchemaRegistry,
) -> None:
    memory = Remembered(registry)
    with pytest.raises(RegistryUnavailableError):
        memory.get_version("shop.Money", 1)
    memory.seal()
    with pytest.raises(SchemaNotLoadedError, match=r"get_version 'shop\.Money'"):
        memory.get_version("shop.Money", 1)


def test_the_schema_may_stand_in_a_header_as_newer_serializers_write_it() -> None:
    number = uuid4()

    def respond(method: str, path: str, body: bytes | None, login: str | None) -> Reply:
        assert path.startswith(f"/schemas/guids/{number}")
        return Reply(200, json.dumps({"id": 7, "guid": str(number), "schema": AVRO}).encode())

    framed: Mapping[str, bytes | None] = {"__value_schema_id": b"\1" + number.bytes}
    with serving(respond) as place, SchemaRegistry(f"http://{place}", timeout=30) as registry:
        orders = AvroSchema(registry, "orders", AVRO_WITH_NOTE)
        body, order = b"\x0eo-12345\x28", {"id": "o-12345", "amount": 20, "note": None}
        assert orders.deserialize(body, framed) == order

        class Headed(Record):
            def header(self, name: str) -> bytes | None:
                return framed.get(name)

        record = Headed("DLQ.orders", b"k", body, {})
        assert KeyTable().run(orders.decode(record, body)) == body
        assert orders.parse(record, body) == order
