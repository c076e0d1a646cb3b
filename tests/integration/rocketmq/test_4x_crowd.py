"""A thousand senders on one producer, senders that are cancelled, and senders that have to wait."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from outbox import Message
from outbox.rocketmq import (
    AsyncTransactionMQProducer,
    LocalTransactionState,
    NoConnectionError,
    TransactionMQProducer,
    TransactionSendResult,
)
from tests.support.rocketmq_scripts import AsyncApp, AsyncListener, Listener, MakeApp, Truth

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
MESSAGE = Message("orders:created", key="o-7", body=b"seven")


@pytest.mark.feature("S-61")
def test_a_thousand_threads_share_one_producer(database: str, truth: Truth) -> None:
    inside, most, guard = 0, 0, threading.Lock()

    class Counting(Listener):
        def execute_local_transaction(self, msg: Any, arg: Any) -> Any:
            nonlocal inside, most
            with guard:
                inside += 1
                most = max(most, inside)
            msg.connection.execute("INSERT INTO business VALUES (%s)", [arg])
            with guard:
                inside -= 1
            return arg.endswith("0")

    everybody = threading.Barrier(1000)

    def send(number: int) -> TransactionSendResult:
        everybody.wait(60)
        return producer.send_message_in_transaction(MESSAGE, f"{number:03}")

    with (
        TransactionMQProducer(
            "orders", database, listener=Counting(), check=False, connections=8, connection_timeout=120
        ) as producer,
        ThreadPoolExecutor(1000) as pool,
    ):
        results = list(pool.map(send, range(1000)))
    assert 1 < most <= 8
    assert [result.local_transaction_state is COMMIT for result in results] == [
        number % 10 == 0 for number in range(1000)
    ]
    assert truth.rows() == [f"{number:03}" for number in range(0, 1000, 10)]
    assert sorted(truth.states()) == ["COMMITTED"] * 100 + ["ROLLED_BACK"] * 900
    assert producer.counts["committed_total"] == 100


@pytest.mark.feature("S-61")
def test_a_thousand_tasks_share_one_producer(database: str, truth: Truth) -> None:
    async def send_all() -> list[TransactionSendResult]:
        producer = AsyncTransactionMQProducer(
            "orders", database, listener=AsyncListener(), check=False, connections=8, connection_timeout=120
        )
        async with producer:
            return await asyncio.gather(*(producer.send_message_in_transaction(MESSAGE) for _ in range(1000)))

    results = asyncio.run(send_all())
    assert {result.local_transaction_state for result in results} == {COMMIT}
    assert truth.states() == ["COMMITTED"] * 1000
    assert len(truth.rows()) == 1000


def test_a_cancelled_task_leaves_an_undecided_message_and_no_rows(database: str, truth: Truth) -> None:
    async def cancel() -> None:
        begun = asyncio.Event()

        class Waiting(AsyncListener):
            async def execute_local_transaction(self, msg: Any, arg: Any) -> Any:
                await msg.connection.execute("INSERT INTO business VALUES ('row')")
                begun.set()
                await asyncio.Event().wait()

        async with AsyncTransactionMQProducer(
            "orders", database, listener=Waiting(), check=False, connections=1
        ) as producer:
            task = asyncio.create_task(producer.send_message_in_transaction(MESSAGE))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The only connection is free again.
            done = await producer.send_message_in_transaction(MESSAGE, execute=lambda msg, arg: True)
            assert done.local_transaction_state is COMMIT

    asyncio.run(cancel())
    assert (truth.states(), truth.rows(), truth.lockable()) == (["UNKNOWN", "COMMITTED"], [], 2)


def test_senders_do_not_wait_for_a_connection_for_ever(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(options={"connections": 1, "connection_timeout": 0.05})
    if isinstance(app, AsyncApp):
        lease = app.run(app.producer._driver.connections.take())
    else:
        lease = app.producer._driver.connections.take()
    with pytest.raises(NoConnectionError, match=r"all 1 were in use for 0\.05 s"):
        app.send(MESSAGE)
    if isinstance(app, AsyncApp):
        app.run(app.producer._driver.connections.give(lease))
    else:
        app.producer._driver.connections.give(lease)
    assert app.send(MESSAGE).local_transaction_state is COMMIT
