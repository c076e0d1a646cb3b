"""Values from `send` to the listener, past a registry that is away, and past bodies that no one can read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox import AsyncOutbox, Message, Outbox
from outbox.codecs import Chain, RegistryUnavailableError
from outbox.codecs.claim_check import ClaimCheck, DirectoryStore
from outbox.codecs.schemas import AvroSchema, RegisteredSchema, SchemaRegistry
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.support.encrypted_bodies import encryption
from tests.support.inbox_stage import Connection, InboxStage
from tests.support.kafka_records import read_topic
from tests.support.order_schemas import AVRO, LANGUAGES, ORDER, Language
from tests.support.relay_session import relay_session, turn_until
from tests.support.schema_registry import RegistryServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("schema registry"), pytest.mark.feature("H-27")]
every_language = pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.name)
INSERT = "INSERT INTO applied (message_id, key, body) VALUES (%s, %s, %s)"


def row(message: ConsumedMessage) -> list[Any]:
    """What is written down of a message: its value."""
    value = message.value
    hash(message)  # also with a value that has none
    shown = None if value is None else json.dumps({"id": read(value, "id"), "amount": read(value, "amount")})
    return [message.message_id, None if message.key is None else message.key.decode(), shown]


def read(value: Any, name: str) -> Any:
    """A field of a dictionary, or of a message of Protobuf."""
    return value[name] if isinstance(value, dict) else getattr(value, name)


def apply_value(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    conn.execute(INSERT, row(message))
    return ConsumeResult.SUCCESS


def apply_values(conn: Connection, messages: Sequence[ConsumedMessage]) -> ConsumeResult:
    for message in messages:
        apply_value(conn, message)
    return ConsumeResult.SUCCESS


async def apply_value_async(conn: psycopg.AsyncConnection[Any], message: ConsumedMessage) -> ConsumeResult:
    await conn.execute(INSERT, row(message))
    return ConsumeResult.SUCCESS


def publish(stage: InboxStage, topic: str, count: int) -> None:
    """Let a relay publish what is in the table."""
    with relay_session(stage.dsn, stage.bootstrap_servers) as session:
        turn_until(session, lambda: stage.end_of(topic) == count, f"{count} messages are in Kafka")


@every_language
def test_a_value_reaches_the_listener_and_stock_clients_read_the_bytes_of_the_table(
    language: Language, inbox: InboxStage, topic: str, schema_registry: SchemaRegistry
) -> None:
    schema = language.schema(schema_registry, topic)
    schema.load(register=True)
    outbox = Outbox("shop", codecs={topic: schema})
    with psycopg.connect(inbox.dsn) as conn:
        outbox.send(conn, Message(topic, "o-1", schema.serialize(language.value), queue=0))
        outbox.send(conn, Message(topic, "o-2", schema.serialize(None), queue=0))
        half = outbox.prepare(conn, Message(topic, "o-3", schema.serialize(language.value), queue=0))
        outbox.commit(conn, half.message_id)
    publish(inbox, topic, 3)
    rows = inbox.conn.execute("SELECT body FROM outbox.message ORDER BY id").fetchall()
    records = read_topic(inbox.bootstrap_servers, topic)
    assert sorted([record.value or b"" for record in records]) == sorted([body or b"" for (body,) in rows])
    by_key = {record.key: language.stock_read(schema_registry.url, topic, record.value) for record in records}
    assert by_key == {b"o-1": language.value, b"o-2": None, b"o-3": language.value}
    with (
        SchemaRegistry(schema_registry.url, timeout=30) as another,
        inbox.consumer(topic, apply_value, codecs={topic: language.schema(another, topic)}),
    ):
        inbox.wait_applied(3)
    assert dict(zip(inbox.applied("key"), inbox.applied("body"), strict=True)) == {
        "o-1": json.dumps(ORDER),
        "o-2": None,
        "o-3": json.dumps(ORDER),
    }


@every_language
def test_a_record_of_a_stock_serializer_reaches_the_listener_as_a_value(
    language: Language, inbox: InboxStage, topic: str, schema_registry: SchemaRegistry
) -> None:
    inbox.produce(topic, "o-1", language.stock_write(schema_registry.url, topic, register=True))
    inbox.produce(
        topic, "o-2", language.stock_write(schema_registry.url, topic), message_id=None
    )  # no outbox at all
    inbox.flush()
    with inbox.consumer(topic, apply_value, codecs={topic: language.schema(schema_registry, topic)}):
        inbox.wait_applied(2)
    assert inbox.applied("body") == [json.dumps(ORDER)] * 2


@pytest.mark.parametrize(
    "kind",
    [(apply_values, {"batch": 10}), (apply_value_async, {}), (apply_value, {"orderly": True})],
    ids=["batch", "asynchronous", "orderly"],
)
def test_every_kind_of_listener_gets_values_out_of_encrypted_bodies_in_a_store(
    kind: tuple[Callable[..., Any], dict[str, Any]],
    inbox: InboxStage,
    topic: str,
    schema_registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    def chain(schema: RegisteredSchema) -> Chain:
        return Chain(schema, encryption(), ClaimCheck(DirectoryStore(tmp_path), over=10))

    orders = AvroSchema(schema_registry, topic, AVRO)
    orders.load(register=True)
    body = orders.serialize(ORDER)
    assert body is not None
    with psycopg.connect(inbox.dsn) as conn:
        Outbox(codecs={topic: chain(orders)}).send(conn, Message(topic, "o-1", body, queue=0))
    publish(inbox, topic, 1)
    (kept,) = [found for found in tmp_path.rglob("*") if found.is_file()]
    assert body not in kept.read_bytes(), "the store has the encrypted body"
    listener, options = kind
    codecs = {topic: chain(AvroSchema(schema_registry, topic, AVRO))}
    with inbox.consumer(topic, listener, codecs=codecs, **options):
        inbox.wait_applied(1)
    assert inbox.applied("body") == [json.dumps(ORDER)]


def test_a_loaded_schema_sends_while_the_registry_hangs_and_another_one_times_out(
    inbox: InboxStage, topic: str, registry_server: RegistryServer
) -> None:
    async def send_async(body: bytes | None) -> None:
        async with await psycopg.AsyncConnection.connect(inbox.dsn) as conn:
            await AsyncOutbox(codecs={topic: orders}).send(conn, Message(topic, "o-2", body))

    patient = SchemaRegistry(registry_server.url, timeout=30)
    hasty = SchemaRegistry(registry_server.url, timeout=0.2)
    with patient, hasty:
        orders, other = AvroSchema(patient, topic, AVRO), AvroSchema(hasty, topic, AVRO)
        orders.load(register=True)
        with registry_server.paused(), psycopg.connect(inbox.dsn) as conn:
            conn.execute("SELECT pg_advisory_xact_lock(1)")  # a lock that others would wait for
            Outbox(codecs={topic: orders}).send(conn, Message(topic, "o-1", orders.serialize(ORDER)))
            asyncio.run(send_async(orders.serialize(ORDER)))
            with pytest.raises(RegistryUnavailableError, match="Timeout"):
                other.load()
        assert AvroSchema(patient, topic, AVRO).load() == orders.load(), "load can be called again"
    assert inbox.count("outbox.message", "state = 'COMMITTED'") == 2


def test_a_transaction_whose_schema_is_not_loaded_writes_nothing_and_does_not_wait(
    inbox: InboxStage, topic: str, registry_server: RegistryServer
) -> None:
    with SchemaRegistry(registry_server.url, timeout=30) as registry, registry_server.paused():
        orders = AvroSchema(registry, topic, AVRO)
        with pytest.raises(Exception, match="is not loaded"), psycopg.connect(inbox.dsn) as conn:
            Outbox(codecs={topic: orders}).send(conn, Message(topic, "o-1", b"\0\0\0\0\1x"))
    assert inbox.count("outbox.message") == 0


def test_a_send_that_is_repeated_with_its_key_is_one_message(
    inbox: InboxStage, topic: str, schema_registry: SchemaRegistry
) -> None:
    orders = AvroSchema(schema_registry, topic, AVRO)
    orders.load(register=True)
    outbox = Outbox("shop", codecs={topic: Chain(orders, encryption())})
    with psycopg.connect(inbox.dsn) as conn:
        sent = [
            outbox.send(conn, Message(topic, "o-1", orders.serialize(ORDER)), idempotency_key="o-1")
            for _ in range(2)
        ]
    assert [receipt.duplicate for receipt in sent] == [False, True]


def test_bodies_that_cannot_be_read_become_dead_letters_and_others_are_applied(
    inbox: InboxStage, topic: str, schema_registry: SchemaRegistry
) -> None:
    orders = AvroSchema(schema_registry, topic, AVRO)
    orders.load(register=True)
    good = orders.serialize(ORDER)
    assert good is not None
    foreign = {"json": b'{"id": "SECRET"}', "unknown": b"\0\x7f\xff\xff\xff" + good[5:], "cut": good[:-1]}
    for key, body in foreign.items():
        inbox.produce(topic, key, body)
        inbox.produce(topic, f"after-{key}", good)
    inbox.produce(topic, "gone", None)
    inbox.flush()
    with inbox.consumer(topic, apply_value, codecs={topic: orders}):
        inbox.wait_applied(4)
        wait_until(
            lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") == 3, "three messages are given up"
        )
    rows = inbox.conn.execute("SELECT fingerprint, error FROM outbox.inbox_parked").fetchall()
    kinds = sorted(fingerprint.partition(" ")[0] for fingerprint, _ in rows)
    assert kinds == ["SchemaNotFoundError", "UndecodableBodyError", "UndecodableBodyError"]
    assert not any("SECRET" in error for _, error in rows)
    assert sorted(inbox.applied("key")) == ["after-cut", "after-json", "after-unknown", "gone"]


def test_a_message_waits_for_a_registry_that_is_away_and_known_schemas_do_not(
    inbox: InboxStage, topic: str, registry_server: RegistryServer
) -> None:
    with (
        SchemaRegistry(registry_server.url) as ours,
        SchemaRegistry(registry_server.url, timeout=0.2) as hasty,
    ):
        orders = AvroSchema(ours, topic, AVRO)
        orders.load(register=True)
        consumer = inbox.consumer(
            topic,
            apply_value,
            codecs={topic: AvroSchema(hasty, topic, AVRO)},
            delays=DelaySchedule.of([0.1] * 400),
        )
        inbox.produce(topic, "o-1", orders.serialize(ORDER))
        inbox.flush()
        with ExitStack() as stack:
            with registry_server.paused():
                stack.enter_context(consumer)
                wait_until(lambda: inbox.count("outbox.inbox_parked"), "the message is parked")
                parked = inbox.conn.execute("SELECT fingerprint FROM outbox.inbox_parked").fetchone() or ("",)
                assert parked[0].startswith("RegistryUnavailableError")
            inbox.wait_applied(1)
            with registry_server.paused():
                inbox.produce(topic, "o-2", orders.serialize(ORDER))
                inbox.flush()
                inbox.wait_applied(2)
