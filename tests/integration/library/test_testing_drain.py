"""`drain` of `outbox.testing`: a test hands over what a relay would publish, as the records that Kafka would have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import AsyncOutbox, Message, Outbox
from outbox.adapters.sqlalchemy import AsyncSQLAlchemyOutbox, SQLAlchemyOutbox
from outbox.errors import SelectorError
from outbox.testing import AsyncSentMessages, PublishedRecord, SentMessages
from outbox_relay.testing.publishing import publish_all
from tests.support.kafka_records import read_topic
from tests.support.servers import MakeTopic

pytestmark = pytest.mark.feature("H-31")
GROUP = Outbox(producer_group="orders")


def messages_of_every_kind(topic: str) -> list[Message]:
    now = datetime.now(UTC)
    return [
        Message(topic, key="k", body=b"1"),
        Message(topic, key="k", body=None),
        Message(topic, body="no key"),
        Message(topic, key="k", order_key="o", body=b"", tags=["a", "b"], index_keys=["i-1", "i-2"]),
        Message(topic, key="17", selector="modulo", headers={"z": "1", "a": None, "u": "ü"}),
        Message(topic, key="q", queue=3, transaction_id="t-1"),
        Message(topic, key="t", traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        Message(topic, key="d", deliver_at=now - timedelta(seconds=1)),
        Message(topic, key="late", deliver_at=now + timedelta(days=1)),
        Message(topic, key="gone", deliver_before=now + timedelta(milliseconds=1)),
    ]


def test_what_is_drained_is_what_the_relay_publishes(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=4)
    with psycopg.connect(database) as conn:
        GROUP.register_topic(conn, topic, 4)
        sent = SentMessages(conn)
        GROUP.send_many(conn, messages_of_every_kind(topic))
        half = GROUP.prepare(conn, Message(topic, key="half"))
        GROUP.send(conn, Message(topic, key="last"))
        GROUP.commit(conn, half)
        drained = sent.drain()
        conn.commit()
    assert publish_all(database, bootstrap_servers) == len(drained) == 10
    published = read_topic(bootstrap_servers, topic)
    assert len(published) == 10
    key = lambda record: (record.partition, record.offset)  # noqa: E731
    for ours, kafkas in zip(sorted(drained, key=key), sorted(published, key=key), strict=True):
        assert (ours.partition, ours.offset, ours.key, ours.value) == kafkas[1:5]
        assert ours.headers == kafkas.headers
    assert [record.key for record in drained][-2:] == [b"last", b"half"]
    assert str(drained[0].message_id) == drained[0].header("outbox-id").decode()  # type: ignore[union-attr]


def test_what_a_consumer_sends_is_handed_over_too(database: str) -> None:
    seen: list[tuple[str, bytes | None]] = []
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)

        def consume(record: PublishedRecord) -> None:
            seen.append((record.topic, record.value))
            if record.topic == "orders":
                GROUP.send(conn, Message("parcels", key=record.key, body=record.value))

        GROUP.send(conn, Message("orders", key="7", body="a"))
        GROUP.send(conn, Message("orders", key="7", body="b"))
        assert [record.topic for record in sent.drain(consume)] == ["orders", "orders", "parcels", "parcels"]
        assert seen == [("orders", b"a"), ("orders", b"b"), ("parcels", b"a"), ("parcels", b"b")]
        assert sent.drain(consume) == []
        conn.rollback()


def test_a_consumer_that_fails_gets_the_message_again(database: str) -> None:
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        GROUP.send_many(conn, [Message("orders", key="7", body=body) for body in ("a", "b", "c")])
        seen: list[bytes | None] = []

        def consume(record: PublishedRecord) -> None:
            seen.append(record.value)
            if seen == [b"a", b"b"]:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            sent.drain(consume)
        assert [(record.value, record.offset) for record in sent.drain(consume)] == [(b"b", 1), (b"c", 2)]
        assert seen == [b"a", b"b", b"b", b"c"]


def test_delayed_messages_come_in_the_order_of_their_times(database: str) -> None:
    now = datetime.now(UTC)
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        for hours in (2, 1, None):
            at = None if hours is None else now + timedelta(hours=hours)
            GROUP.send(conn, Message("orders", body=str(hours), deliver_at=at))
        assert [record.value for record in sent.drain()] == [b"None"]
        assert [record.value for record in sent.drain(delayed=True)] == [b"1", b"2"]
        conn.rollback()


def test_a_listener_of_the_inbox_gets_its_message(database: str) -> None:
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        receipt = GROUP.send(conn, Message("orders", key="7", body="a", tags=["x", "y"], index_keys=["i"]))
        [record] = sent.drain()
        message = record.consumed()
        assert (message.message_id, message.tags, message.keys) == (receipt.message_id, ("x", "y"), ("i",))
        assert (message.topic, message.key, message.body, message.offset) == ("orders", b"7", b"a", 0)
        conn.rollback()


def test_a_message_without_a_partition_is_refused_as_the_relay_does(database: str) -> None:
    with psycopg.connect(database) as conn:
        GROUP.register_topic(conn, "orders", 2)
        sent = SentMessages(conn)
        conn.execute("INSERT INTO outbox.message (topic, key, selector) VALUES ('orders', 'x', 'crc32')")
        sent.drain()
        # A row that states its lane is trusted: the relay finds out, and holds its key back.
        conn.execute("INSERT INTO outbox.message (topic, queue, lane) VALUES ('orders', 9, 0)")
        with pytest.raises(SelectorError, match="queue"):
            sent.drain()
        conn.rollback()


def test_a_session_of_sqlalchemy_shows_what_it_sent(database: str) -> None:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://", 1))
    orders = SQLAlchemyOutbox("orders")
    with Session(engine) as session:
        sent = SentMessages(session, orders)
        orders.send(session, Message("orders", key="7"))
        half = orders.prepare(session, Message("payments", key="8"))
        sent.assert_sent("orders", key="7")
        sent.commit("payments", key="8")
        assert [record.key for record in sent.drain()] == [b"7", b"8"]
        assert half.message_id == sent.all("payments")[0].message_id
        session.rollback()
        assert sent.all() == []
    engine.dispose()


async def of_psycopg(dsn: str, work: Callable[[Any, Any], Any]) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await work(conn, AsyncOutbox("orders"))
        await conn.rollback()


async def of_autocommit(dsn: str, work: Callable[[Any, Any], Any]) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn, conn.transaction():
        await work(conn, AsyncOutbox("orders"))


async def of_asyncpg(dsn: str, work: Callable[[Any, Any], Any]) -> None:
    engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://", 1))
    async with AsyncSession(engine) as session:
        await work(session, AsyncSQLAlchemyOutbox("orders"))
        await session.rollback()
    await engine.dispose()


@pytest.mark.parametrize("on", [of_psycopg, of_autocommit, of_asyncpg])
def test_asynchronous_connections_have_the_same_methods(database: str, on: Any) -> None:
    seen: list[bytes | None] = []

    async def consume(record: PublishedRecord) -> None:
        seen.append(record.value)

    async def work(conn: Any, orders: Any) -> None:
        adapter = None if isinstance(orders, AsyncOutbox) else orders
        sent = await AsyncSentMessages.begin(conn, adapter)
        message = Message("orders", key="7", body='{"n": 1}', tags=["x"], headers={"a": "1"})
        await orders.send(conn, message)
        half = await orders.prepare(conn, Message("payments", key="8", body="half"))
        [one] = await sent.assert_sent("orders", key="7", body={"n": 1}, tags=["x"], headers={"a": "1"})
        assert one.state == "COMMITTED"
        await sent.refute_sent("parcels")
        with pytest.raises(AssertionError, match="expected an undecided"):
            await sent.rollback("payments", key="9")
        assert [each.message_id for each in await sent.commit("payments")] == [half.message_id]
        assert [record.topic for record in await sent.drain(consume)] == ["orders", "payments"]
        assert await sent.drain(lambda record: seen.append(record.value)) == []

    asyncio.run(on(database, work))
    assert seen == [b'{"n": 1}', b"half"]
