"""The checker inside a producer's process: it starts, stops, shares, and outlives the loss of its database."""

from __future__ import annotations

import asyncio
import logging
import threading

import psycopg
import pytest

from outbox.checking import GroupChecker, ListenerAsker, Listeners
from outbox.errors import ConfigurationError
from outbox.records import MessageView
from outbox_local.stack.api import Stack
from tests.support.checked_half_messages import GROUP, CheckStage, Script
from tests.support.plain_inserts import connect
from tests.support.waiting import wait_until

END_OTHERS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Payments:
    """RocketMQ 4.x's listener."""

    def __init__(self, paid: set[str]) -> None:
        self.paid = paid

    def check_local_transaction(self, view: MessageView) -> bool | None:
        return True if view.biz_id in self.paid else None


@pytest.mark.feature("S-40", "S-44")
def test_a_started_checker_decides_what_falls_due(stage: CheckStage) -> None:
    stage.group(check_after="0.2 seconds")
    listeners = Listeners()
    listeners.register(Payments({"p-7"}), checker="payment")
    checker = GroupChecker(lambda: connect(stage.dsn), GROUP, ListenerAsker(listeners))
    checker.start()
    half = stage.half(age=0.0, checker="payment", biz_id="p-7")
    other = stage.half(age=0.0, checker="payment", biz_id="p-8")
    wait_until(lambda: stage.state(half) == "COMMITTED", "it is asked about and decided")
    wait_until(lambda: stage.checks(other) == 1, "the other one is asked about, and stays")
    assert checker.stop()
    assert stage.state(other) == "UNKNOWN"


@pytest.mark.feature("S-44")
def test_when_one_instance_dies_another_answers(stage: CheckStage) -> None:
    stage.group(check_after="0 seconds", check_interval="0.2 seconds", max_check_interval="0.2 seconds")
    half = stage.half()
    first = GroupChecker(stage.dsn, GROUP, Script(None))
    first.start()
    wait_until(lambda: (stage.checks(half) or 0) >= 1, "the first one has asked")
    first.stop()
    second = GroupChecker(stage.dsn, GROUP, Script(True))
    second.start()
    wait_until(lambda: stage.state(half) == "COMMITTED", "the second one is answered")
    second.stop()


def test_run_once_does_all_that_is_due(stage: CheckStage) -> None:
    stage.halves(500)
    checker = GroupChecker(stage.dsn, GROUP, Script(True))
    done = checker.run_once()
    assert (done.enqueued, done.decided, done.in_flight) == (500, 500, 0)
    assert checker.stop()


def test_stop_settles_what_is_being_asked_and_gives_back_the_rest(stage: CheckStage) -> None:
    stage.group(workers=1)
    stage.halves(5)
    asked, go_on = threading.Event(), threading.Event()

    def say(_: MessageView) -> bool:
        asked.set()
        return go_on.wait(30)

    checker = GroupChecker(stage.dsn, GROUP, Script(say))
    checker.start()
    assert asked.wait(30)
    stopping = threading.Thread(target=checker.stop, args=[30])
    stopping.start()
    go_on.set()
    stopping.join(60)
    assert stage.one("SELECT count(*) FROM outbox.message WHERE state = 'COMMITTED'") >= 1
    assert stage.one("SELECT count(*) FROM outbox.pending_check WHERE asked_by IS NOT NULL") == 0


def test_a_call_that_hangs_does_not_hold_up_stop(stage: CheckStage) -> None:
    stage.half()
    release = threading.Event()
    asker = Script(lambda _: release.wait(60))
    checker = GroupChecker(stage.dsn, GROUP, asker)
    checker.start()
    wait_until(lambda: asker.asked, "it is being asked")
    assert not checker.stop(timeout=0.2)
    release.set()
    assert checker.stop(timeout=30)


def test_it_goes_on_when_its_session_is_ended(stage: CheckStage) -> None:
    checker = GroupChecker(stage.dsn, GROUP, Script(True), name="survivor")
    checker.start()
    wait_until(lambda: stage.one(END_OTHERS), "its session is ended")
    half = stage.half()
    wait_until(lambda: stage.state(half) == "COMMITTED", "it has opened another one")
    checker.stop()


def test_it_waits_for_a_database_that_is_not_there_yet(
    stage: CheckStage, caplog: pytest.LogCaptureFixture
) -> None:
    half = stage.half()
    attempts = []

    def sometimes() -> psycopg.Connection[tuple[object, ...]]:
        attempts.append(1)
        if len(attempts) < 3:
            raise psycopg.OperationalError("the server is starting up")
        return psycopg.connect(stage.dsn)

    with caplog.at_level(logging.WARNING, "outbox.checking"):
        checker = GroupChecker(sometimes, GROUP, Script(True))
        checker.start()
        wait_until(lambda: stage.state(half) == "COMMITTED", "it has come")
        checker.stop()
    assert "checker of group payments: OperationalError: the server is starting up" in caplog.text


def test_it_outlives_whatever_the_database_says(stage: CheckStage, caplog: pytest.LogCaptureFixture) -> None:
    stage.conn.execute("ALTER TABLE outbox.pending_check RENAME TO away")
    checker = GroupChecker(stage.dsn, GROUP, Script(True))
    with caplog.at_level(logging.WARNING, "outbox.checking"):
        checker.start()
        half = stage.half(body=b"secret")
        wait_until(lambda: "UndefinedTable" in caplog.text, "it has failed")
    stage.conn.execute("ALTER TABLE outbox.away RENAME TO pending_check")
    wait_until(lambda: stage.state(half) == "COMMITTED", "it goes on")
    checker.stop()
    assert "secret" not in caplog.text


def test_a_caller_s_isolation_does_not_matter(stage: CheckStage) -> None:
    half = stage.half()
    levels = []
    strict = psycopg.connect(stage.dsn, options="-c default_transaction_isolation=serializable")
    strict.isolation_level = psycopg.IsolationLevel.SERIALIZABLE

    def say(_: MessageView) -> bool:
        levels.append(strict.isolation_level)
        return True

    checker = GroupChecker(lambda: strict, GROUP, Script(say))
    checker.run_once()
    checker.stop()
    assert stage.state(half) == "COMMITTED"
    assert levels == [psycopg.IsolationLevel.READ_COMMITTED]


def test_listeners_may_be_coroutines_of_the_application_s_loop(stage: CheckStage) -> None:
    half = stage.half()
    loops = []

    async def check(view: MessageView) -> bool:
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return True

    async def application() -> asyncio.AbstractEventLoop:
        listeners = Listeners()
        listeners.register(check)
        loop = asyncio.get_running_loop()
        checker = GroupChecker(stage.dsn, GROUP, ListenerAsker(listeners, loop=loop))
        await asyncio.to_thread(checker.run_once)
        checker.stop()
        return loop

    loop = asyncio.run(application())
    assert loops == [loop]
    assert stage.state(half) == "COMMITTED"


def test_it_is_started_once_and_for_a_group(stage: CheckStage) -> None:
    with pytest.raises(ConfigurationError, match="1 to 255"):
        GroupChecker(stage.dsn, "", Script(True))
    checker = GroupChecker(stage.dsn, GROUP, Script(True))
    checker.start()
    with pytest.raises(ConfigurationError, match="already"):
        checker.start()
    assert checker.stop()


def test_a_restart_of_postgresql_is_outlived(private_stack: Stack, private_database: str) -> None:
    stage = CheckStage(private_database)
    checker = GroupChecker(private_database, GROUP, Script(True))
    checker.start()
    wait_until(
        lambda: stage.one("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") >= 2,
        "it is connected",
    )
    stage.close()
    private_stack.stop_postgres()
    private_stack.start_postgres()
    stage = CheckStage(private_database)
    half = stage.half()
    wait_until(lambda: stage.state(half) == "COMMITTED", "it has connected again")
    checker.stop()
    stage.close()
