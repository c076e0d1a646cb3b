"""Connections borrowed from psycopg's own pools: nothing is committed that the models did not mean to commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from outbox import Message
from outbox.rocketmq import AsyncTransactionMQProducer, LocalTransactionState, TransactionMQProducer
from outbox.rocketmq.connections import AsyncConnections, Connections
from tests.support.rocketmq_scripts import Truth

MESSAGE = Message("orders", key="o-7", body=b"seven")


class Silent:
    """Is never asked here."""

    def check_local_transaction(self, msg: Any) -> None:
        """Know nothing."""


class Careless(Silent):
    """Leaves a transaction block open on the connection and raises, so that its rollback by name is refused."""

    def execute_local_transaction(self, msg: Any, arg: object) -> LocalTransactionState:
        msg.connection.transaction().__enter__()
        msg.connection.execute("INSERT INTO business VALUES ('never to be seen')")
        raise ValueError("no such card")


class AsyncCareless(Silent):
    """The same for asyncio."""

    async def execute_local_transaction(self, msg: Any, arg: object) -> LocalTransactionState:
        await msg.connection.transaction().__aenter__()
        await msg.connection.execute("INSERT INTO business VALUES ('never to be seen')")
        raise ValueError("no such card")


class Paying(Silent):
    """Writes a row and answers COMMIT."""

    def execute_local_transaction(self, msg: Any, arg: object) -> LocalTransactionState:
        msg.connection.execute("INSERT INTO business VALUES ('row')")
        return LocalTransactionState.COMMIT


def test_what_is_given_back_inside_a_transaction_is_rolled_back(database: str, truth: Truth) -> None:
    with ConnectionPool(database, min_size=1, max_size=1) as pool:
        connections = Connections(pool, 1, 1.0)
        lease = connections.take()
        lease.conn.execute("INSERT INTO business VALUES ('never to be seen')")
        connections.give(lease)
    assert truth.rows() == []


def test_what_is_given_back_to_an_async_pool_is_rolled_back_too(database: str, truth: Truth) -> None:
    async def borrow() -> None:
        async with AsyncConnectionPool(database, min_size=1, max_size=1, open=False) as pool:
            connections = AsyncConnections(pool, 1, 1.0)
            lease = await connections.take()
            await lease.conn.execute("INSERT INTO business VALUES ('never to be seen')")
            await connections.give(lease)

    asyncio.run(borrow())
    assert truth.rows() == []


def test_a_connection_left_inside_a_transaction_is_not_committed_by_its_pool(
    database: str, truth: Truth
) -> None:
    with ConnectionPool(database, min_size=1, max_size=2) as pool:
        with TransactionMQProducer("orders", pool, listener=Careless(), check=False) as producer:
            try:
                result = producer.send_message_in_transaction(MESSAGE)
            except Exception as error:  # noqa: BLE001  (what is told matters less than what is committed)
                pytest.fail(f"the listener's mistake became the caller's: {error!r}")
            assert result.local_transaction_state is LocalTransactionState.UNKNOWN
        assert truth.rows() == []
        assert truth.states() == ["UNKNOWN"]
        with TransactionMQProducer("orders", pool, listener=Paying(), check=False) as producer:
            producer.send_message_in_transaction(MESSAGE)
        assert truth.rows() == ["row"]


def test_neither_by_an_async_pool(database: str, truth: Truth) -> None:
    async def send() -> LocalTransactionState:
        async with (
            AsyncConnectionPool(database, min_size=1, max_size=2, open=False) as pool,
            AsyncTransactionMQProducer("orders", pool, listener=AsyncCareless(), check=False) as producer,
        ):
            return (await producer.send_message_in_transaction(MESSAGE)).local_transaction_state

    assert asyncio.run(send()) is LocalTransactionState.UNKNOWN
    assert truth.rows() == []
    assert truth.states() == ["UNKNOWN"]
