"""Producers that answer checks of their own group, and where their connections may come from."""

from __future__ import annotations

import asyncio
import secrets
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outbox import Message
from outbox.checking import GroupChecker, ListenerAsker, Listeners
from outbox.errors import ConfigurationError
from outbox.rocketmq import (
    AsyncProducer,
    AsyncTransactionMQProducer,
    LocalTransactionState,
    Producer,
    TransactionChecker,
    TransactionListener,
    TransactionMQProducer,
    TransactionResolution,
)
from tests.support.rocketmq_scripts import AsyncListener, Listener, Truth
from tests.support.waiting import wait_until

MESSAGE = Message("orders:created", key="o-7", body=b"seven", biz_type="order", biz_id="7")


class Gate(threading.Event):
    """Lets checks answer when the sends are done, however slow the machine is; they are due at once."""

    def then(self, answer: Any) -> Any:
        """What a check answers."""
        return answer if self.wait(60) else None


@pytest.mark.feature("S-15", "S-24", "S-29")
@pytest.mark.parametrize(("answer", "state"), [(True, "COMMITTED"), (False, "ROLLED_BACK")])
def test_a_listener_is_asked_about_what_it_left_open(
    database: str, truth: Truth, sent: Gate, answer: bool, state: str
) -> None:
    listener = Listener(answer=None, check=lambda view: sent.then(answer))
    assert isinstance(listener, TransactionListener)
    with TransactionMQProducer("orders", database, listener=listener) as producer:
        result = producer.send_message_in_transaction(MESSAGE, "arg", check_after=0)
        sent.set()
        wait_until(lambda: truth.states() == [state], "decided by the check")
    (view,) = listener.asked
    assert (view.message_id, view.transaction_id) == (result.msg_id, result.transaction_id)
    assert (view.topic, view.tags, view.key, view.body) == ("orders", ("created",), b"o-7", b"seven")
    assert (view.biz_type, view.biz_id, view.producer_group) == ("order", "7", "orders")
    assert not hasattr(view, "connection")


@pytest.mark.feature("S-71")
def test_an_asynchronous_listener_is_asked_on_the_applications_loop(database: str, truth: Truth) -> None:
    async def main() -> None:
        loops: list[Any] = []
        sent_all = asyncio.Event()

        class Checked(AsyncListener):
            async def check_local_transaction(self, view: Any) -> Any:
                loops.append(asyncio.get_running_loop())
                await sent_all.wait()
                return LocalTransactionState.COMMIT_MESSAGE

        async with AsyncTransactionMQProducer(
            "orders", database, listener=Checked(answer=ValueError("lost"))
        ) as producer:
            await producer.send_message_in_transaction(MESSAGE, check_after=0)
            sent_all.set()
            await asyncio.to_thread(wait_until, lambda: truth.states() == ["COMMITTED"], "decided")
        assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


@pytest.mark.feature("S-71")
def test_a_checker_answers_for_a_transaction_that_was_forgotten(database: str, truth: Truth) -> None:
    class Checker:
        def check(self, message_view: Any) -> TransactionResolution:
            return TransactionResolution.COMMIT if truth.rows() else TransactionResolution.ROLLBACK

    assert isinstance(Checker(), TransactionChecker)
    with Producer(database, producer_group="orders", checker=Checker(), topics=["orders"]) as producer:
        transaction = producer.begin_transaction()
        producer.send(MESSAGE, transaction, check_after=0)
        wait_until(lambda: truth.states() == ["ROLLED_BACK"], "rolled back by the check")
        truth.conn.execute("INSERT INTO business VALUES ('row')")
        producer.send(MESSAGE, producer.begin_transaction(), check_after=0)
        wait_until(lambda: truth.states() == ["ROLLED_BACK", "COMMITTED"], "committed by the check")


def test_a_running_local_transaction_is_not_asked_about(database: str, truth: Truth) -> None:
    listeners = Listeners()
    checker = GroupChecker(database, "orders", ListenerAsker(listeners))
    listener = Listener(then=lambda msg: checker.run_once())
    listeners.register(listener)
    with TransactionMQProducer("orders", database, listeners=listeners, check=False) as producer:
        result = producer.send_message_in_transaction(MESSAGE, check_after=0)
    checker.stop()
    assert result.local_transaction_state is LocalTransactionState.COMMIT
    assert truth.states() == ["COMMITTED"]
    assert listener.asked == []
    assert truth.conn.execute("SELECT checks FROM outbox.pending_check").fetchall() in ([], [(0,)])


def test_several_producers_of_one_group_share_the_checks(database: str, truth: Truth, sent: Gate) -> None:
    listeners = [Listener(answer=None, check=lambda view: sent.then(True)) for _ in range(3)]
    producers = [TransactionMQProducer("orders", database, listener=each) for each in listeners]
    for producer in producers:
        producer.start()
    for producer in producers:
        for _ in range(10):
            producer.send_message_in_transaction(MESSAGE, check_after=0)
    sent.set()
    wait_until(lambda: truth.states() == ["COMMITTED"] * 30, "decided by the checks")
    for producer in producers:
        producer.shutdown()
    assert sum(len(listener.asked) for listener in listeners) == 30


@pytest.fixture
def truth(truth: Truth) -> Truth:
    """A database whose group of producers waits long for its checks."""
    truth.conn.execute(
        "INSERT INTO outbox.producer_group (name, message_type, check_timeout)"
        " VALUES ('orders', 'TRANSACTION', '60 s')"
    )
    return truth


@pytest.fixture
def sent() -> Gate:
    return Gate()


class Pool:
    """The part of a pool that producers use; a real one of three connections."""

    def __init__(self, dsn: str) -> None:
        self.conninfo = dsn
        self.kwargs: dict[str, Any] = {"application_name": "pooled"}
        self.made: list[psycopg.Connection[Any]] = []
        self.idle: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._lock:
            conn = self.idle.pop() if self.idle else None
        if conn is None:
            conn = psycopg.connect(self.conninfo, **self.kwargs)
            self.made.append(conn)
        yield conn
        if not conn.closed:
            assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            self.idle.append(conn)

    def close(self) -> None:
        for conn in self.made:
            conn.close()


class AsyncPool:
    """The same for asyncio, with one connection."""

    def __init__(self, dsn: str) -> None:
        self.conninfo, self.kwargs = dsn, {"application_name": "pooled"}

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        async with await psycopg.AsyncConnection.connect(self.conninfo) as conn:
            yield conn


def test_connections_may_come_from_a_pool(database: str, truth: Truth, sent: Gate) -> None:
    pool = Pool(database)
    listener = Listener(answer=None, check=lambda view: sent.then(True))
    with TransactionMQProducer("orders", pool, listener=listener) as producer:
        producer.send_message_in_transaction(MESSAGE, check_after=0)
        producer.send_message_in_transaction(MESSAGE, execute=lambda msg, arg: True)
        sent.set()
        wait_until(lambda: truth.states() == ["COMMITTED"] * 2, "decided by the check")
        assert len(pool.made) == 1  # the checker's connection is like the pool's, but none of them
        truth.kill(pool.made[0].info.backend_pid)
        producer.send_message_in_transaction(MESSAGE, execute=lambda msg, arg: True)
    pool.close()
    assert truth.states() == ["COMMITTED"] * 3


def test_an_asynchronous_pool_lends_its_address_to_the_checker(database: str, truth: Truth) -> None:
    async def main() -> None:
        async with AsyncProducer(
            AsyncPool(database), producer_group="orders", checker=lambda view: True
        ) as producer:
            await producer.send(MESSAGE, producer.begin_transaction(), check_after=0)
            await asyncio.to_thread(wait_until, lambda: truth.states() == ["COMMITTED"], "decided")

    asyncio.run(main())


def test_connections_may_come_from_a_callable(database: str, truth: Truth) -> None:
    made: list[int] = []

    def connect() -> psycopg.Connection[Any]:
        conn = psycopg.connect(database, autocommit=True)
        made.append(conn.info.backend_pid)
        return conn

    with TransactionMQProducer("orders", connect, listener=Listener(), check=False) as producer:
        for _ in range(3):
            producer.send_message_in_transaction(MESSAGE)
    assert len(made) == 1
    assert (truth.states(), truth.rows()) == (["COMMITTED"] * 3, ["row"] * 3)

    async def main() -> None:
        async def connect_async() -> psycopg.AsyncConnection[Any]:
            return await psycopg.AsyncConnection.connect(database)

        async with AsyncTransactionMQProducer(
            "orders", connect_async, listener=AsyncListener(), checker_connect=database
        ) as producer:
            await producer.send_message_in_transaction(MESSAGE)

    asyncio.run(main())
    assert truth.states() == ["COMMITTED"] * 4


@pytest.mark.parametrize("method", ["execute_local_transaction", "check_local_transaction"])
def test_a_producer_for_threads_refuses_listeners_it_would_have_to_await(database: str, method: str) -> None:
    async def later(*args: Any) -> None:
        """Never called."""

    listener = Listener()
    setattr(listener, method, later)
    producer = TransactionMQProducer("orders", database, listener=listener)
    with pytest.raises(ConfigurationError, match="is async"):
        producer.start()
    producer = TransactionMQProducer("orders", database, listener=Listener(), check=False)
    with producer, pytest.raises(ConfigurationError, match="is async"):
        producer.send_message_in_transaction(MESSAGE, execute=later)


def test_the_roles_of_producer_and_checker_are_enough(database: str, truth: Truth, sent: Gate) -> None:
    name, password = f"test_{uuid.uuid4().hex[:12]}", secrets.token_hex(8)
    truth.conn.execute(
        sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} IN ROLE outbox_producer, outbox_checker").format(
            sql.Identifier(name), sql.Literal(password)
        )
    )
    truth.conn.execute(sql.SQL("GRANT INSERT ON business TO {}").format(sql.Identifier(name)))
    dsn = psycopg.conninfo.make_conninfo(database, user=name, password=password)
    try:
        listener = Listener(answer=None, check=lambda view: sent.then(True))
        with TransactionMQProducer("orders", dsn, listener=listener) as producer:
            for answer in (True, False, ValueError("no")):
                listener.answer = answer
                producer.send_message_in_transaction(MESSAGE, check_after=0, idempotency_key=str(answer))
            again = producer.send_message_in_transaction(MESSAGE, idempotency_key="True")
            assert again.local_transaction_state is LocalTransactionState.COMMIT
            sent.set()
            wait_until(lambda: "UNKNOWN" not in truth.states(), "decided by the check")
        assert truth.states() == ["COMMITTED", "ROLLED_BACK", "COMMITTED"]
    finally:
        truth.conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
        truth.conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))
