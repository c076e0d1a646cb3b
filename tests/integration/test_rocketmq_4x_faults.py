"""RocketMQ 4.x's model when connections are lost, others decide, and a thousand send at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outbox import Message
from outbox.errors import DecidedOtherwiseError
from outbox.resolution import LocalTransactionState
from outbox.transactions import (
    AsyncTransactionMQProducer,
    NoConnectionError,
    SendStatus,
    TransactionMQProducer,
    TransactionSendResult,
)
from tests.producers import KINDS, App, AsyncApp, AsyncListener, Cut, Listener, Truth
from tests.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
MESSAGE = Message("orders:created", key="o-7", body=b"seven")
MOST_STEPS = 40

MakeApp = Callable[..., App | AsyncApp]


@pytest.fixture
def truth(database: str) -> Iterator[Truth]:
    made = Truth(database)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def make_app(request: pytest.FixtureRequest, database: str, truth: Truth) -> Iterator[MakeApp]:
    made: list[App | AsyncApp] = []

    def make(*, options: dict[str, Any] | None = None, **script: Any) -> App | AsyncApp:
        app = KINDS[request.param](database, script, options or {})
        made.append(app)
        app.start()
        return app

    yield make
    for app in made:
        app.close()


def try_to_send(app: App | AsyncApp) -> TransactionSendResult | None:
    """Send; None where the half message could not be stored."""
    try:
        return app.send(MESSAGE)
    except psycopg.OperationalError:
        return None


@pytest.mark.feature("S-12", "S-18", "S-20")
@pytest.mark.parametrize("answer", [True, False, None, ValueError("no")])
def test_a_connection_killed_before_any_step_never_parts_message_and_rows(
    make_app: MakeApp, truth: Truth, answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(answer=answer)
    io, struck = app.producer._io, []
    for at in range(MOST_STEPS):
        truth.conn.execute("TRUNCATE business")
        truth.decide("ROLLED_BACK", "of an earlier round")
        before, calls = len(truth.states()), len(app.listener.calls)
        cut = Cut(io, at, before=lambda conn: truth.kill(conn.info.backend_pid))
        app.producer._io = cut
        result = try_to_send(app)
        app.producer._io = io
        if cut.struck is None and at > 0:
            break
        struck.append(cut.struck)
        ran, rows, states = len(app.listener.calls) - calls, truth.rows(), truth.states()[before:]
        assert truth.lockable() == len(truth.states()), "a lock was left"
        assert len(states) <= 1
        if result is None:
            assert (ran, rows, states) == (0, [], []), f"step {at}: half a send after an error"
        elif result.local_transaction_state is COMMIT:
            assert (rows, states) == (["row"], ["COMMITTED"]), f"step {at}"
        elif result.local_transaction_state is ROLLBACK:
            assert rows == [], f"step {at}"
            assert states in ([], ["ROLLED_BACK"]), f"step {at}"
            assert (ran == 1) == (answer is False and result.send_status is SendStatus.SEND_OK and ran == 1)
        else:
            assert (ran, states) == (1, ["UNKNOWN"]), f"step {at}"
            assert rows in ([], ["row"]) if answer is None else rows == [], f"step {at}"
            assert truth.message(result.msg_id) == ("UNKNOWN", result.remark), f"step {at}"
    assert {"begin", "verb", "commit", "call"} <= set(struck)


@pytest.mark.feature("S-18")
def test_a_half_message_in_doubt_runs_nothing_and_is_rolled_back(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 3, lose=True)
    result = app.send(MESSAGE)
    assert app.producer._io.struck == "commit"
    assert result.send_status is SendStatus.FLUSH_DISK_TIMEOUT
    assert result.local_transaction_state is ROLLBACK
    assert "local transaction not run; half message rolled back" in (result.remark or "")
    assert app.listener.calls == []
    assert truth.states() == ["ROLLED_BACK"]
    assert app.producer.counts["ambiguous_total"] == 1


@pytest.mark.feature("S-18")
def test_a_half_message_that_never_arrived_runs_nothing(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 3, before=lambda conn: truth.kill(conn.info.backend_pid))
    result = app.send(MESSAGE)
    assert result.send_status is SendStatus.FLUSH_DISK_TIMEOUT
    assert result.local_transaction_state is ROLLBACK
    assert "not rolled back (UnknownMessageError" in (result.remark or "")
    assert (app.listener.calls, truth.states()) == ([], [])


def test_a_decision_whose_answer_was_lost_is_looked_up(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 8, lose=True)
    result = app.send(MESSAGE)
    assert app.producer._io.struck == "commit"
    assert result.local_transaction_state is COMMIT
    assert "found decided after a lost COMMIT" in (result.remark or "")
    assert (truth.states(), truth.rows()) == (["COMMITTED"], ["row"])


@pytest.mark.feature("S-21")
def test_a_decision_that_failed_is_warned_of_counted_and_left_to_the_check(
    make_app: MakeApp, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 8, before=lambda conn: truth.kill(conn.info.backend_pid))
    with caplog.at_level(logging.WARNING, "outbox.transactions"):
        result = app.send(MESSAGE)
    assert app.producer._io.struck == "commit"
    assert result.local_transaction_state is UNKNOWN
    assert "local transaction execute COMMIT, but end transaction failed" in (result.remark or "")
    assert "but end transaction failed" in caplog.text
    assert app.producer.counts["confirm_failed_total"] == 1
    assert truth.message(result.msg_id) == ("UNKNOWN", result.remark)
    assert truth.rows() == []


def test_rows_that_the_database_refuses_at_commit_leave_the_message_to_the_check(
    make_app: MakeApp, truth: Truth
) -> None:
    truth.conn.execute("ALTER TABLE business ADD UNIQUE (what) DEFERRABLE INITIALLY DEFERRED")
    app = make_app()
    assert app.send(MESSAGE).local_transaction_state is COMMIT
    result = app.send(MESSAGE)
    assert result.local_transaction_state is UNKNOWN
    assert "UniqueViolation" in (result.remark or "")
    assert truth.message(result.msg_id) == ("UNKNOWN", result.remark)
    assert truth.rows() == ["row"]


def test_a_check_that_came_before_the_local_transaction_is_obeyed(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(
        app.producer._io, 4, before=lambda conn: truth.decide("ROLLED_BACK", "nothing was found")
    )
    result = app.send(MESSAGE)
    assert result.local_transaction_state is ROLLBACK
    assert "nothing was found" in (result.remark or "")
    assert (app.listener.calls, truth.states(), truth.rows()) == ([], ["ROLLED_BACK"], [])


def test_an_operators_commit_before_the_local_transaction_is_told(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 4, before=lambda conn: truth.decide("COMMITTED", "by hand"))
    with pytest.raises(DecidedOtherwiseError, match="by hand"):
        app.send(MESSAGE)
    assert (app.listener.calls, truth.states(), truth.rows()) == ([], ["COMMITTED"], [])


def test_a_commit_between_the_rollback_of_rows_and_message_is_told(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(answer=False)
    app.producer._io = Cut(app.producer._io, 8, before=lambda conn: truth.decide("COMMITTED", "by hand"))
    with pytest.raises(DecidedOtherwiseError, match="by hand"):
        app.send(MESSAGE)
    assert (truth.states(), truth.rows()) == (["COMMITTED"], [])
    assert app.producer.counts["confirm_failed_total"] == 1


def test_a_kept_connection_that_died_is_replaced_unnoticed(make_app: MakeApp, truth: Truth) -> None:
    pids: list[int] = []
    app = make_app(then=lambda msg: pids.append(msg.connection.info.backend_pid))
    app.send(MESSAGE)
    truth.kill(pids[0])
    assert app.send(MESSAGE).local_transaction_state is COMMIT
    assert pids[0] != pids[1]
    app.send(MESSAGE)
    assert pids[1] == pids[2]


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


@pytest.fixture
def without_standby(private_database: str) -> Iterator[Truth]:
    """A database whose server waits for a standby that does not exist, and what is committed in it."""
    truth = Truth(private_database)
    truth.conn.execute("SET synchronous_commit = local")
    yield truth
    truth.conn.execute("ALTER SYSTEM RESET synchronous_standby_names")
    truth.conn.execute("SELECT pg_reload_conf()")
    truth.close()


@pytest.mark.feature("S-18")
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pg_cancel_backend", SendStatus.FLUSH_SLAVE_TIMEOUT),
        ("pg_terminate_backend", SendStatus.FLUSH_DISK_TIMEOUT),
    ],
)
def test_a_half_message_the_standby_may_not_have_runs_nothing(
    without_standby: Truth, private_database: str, end: str, status: SendStatus
) -> None:
    truth = without_standby
    listener = Listener()
    with TransactionMQProducer("orders", private_database, listener=listener, check=False) as producer:
        truth.conn.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        truth.conn.execute("SELECT pg_reload_conf()")
        wait_until(
            lambda: truth.conn.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",), "reloaded"
        )
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(producer.send_message_in_transaction, MESSAGE)
            wait_until(lambda: _end_waiting(truth, end) or sending.done(), "the commit waits for the standby")
            result = sending.result(60)
    assert result.send_status is status
    assert result.local_transaction_state is ROLLBACK
    assert "half message rolled back" in (result.remark or "")
    assert (listener.calls, truth.states()) == ([], ["ROLLED_BACK"])


def _end_waiting(truth: Truth, end: str) -> bool:
    return bool(
        truth.conn.execute(
            psycopg.sql.SQL("SELECT {}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").format(
                psycopg.sql.Identifier(end)
            )
        ).fetchall()
    )
