"""Asynchronous listeners: the same promises, on an `AsyncConnection` in one event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any

import psycopg
import pytest

from outbox import AsyncOutbox, Message
from outbox.errors import ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.support.inbox_stage import InboxStage
from tests.support.servers import MakeTopic
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import wait_until

Connection = psycopg.AsyncConnection[Any]
SUCCESS, LATER = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER
INSERT = "INSERT INTO applied (message_id, key, body) VALUES (%s, %s, %s)"


async def apply(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Write one row for a message: an asynchronous listener."""
    key, body = (None if part is None else part.decode() for part in (message.key, message.body))
    await conn.execute(INSERT, [message.message_id, key, body])
    return SUCCESS


def test_an_asynchronous_listener_applies_each_message_once(inbox: InboxStage, topic: str) -> None:
    seen: set[int] = set()

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.add(threading.get_ident())
        return await apply(conn, message)

    inbox.produce_numbered(topic, 100, keys=20)
    with inbox.consumer(topic, listener, orderly=True):
        inbox.wait_applied(100)
        inbox.end_sessions()
        inbox.produce_numbered(topic, 100, keys=20, start=100)
        inbox.wait_applied(200)
    assert inbox.by_key() == {f"k{key}": [*range(key, 200, 20)] for key in range(20)}
    assert inbox.count("outbox.inbox") == 200
    assert len(seen) == 1, "all listeners run in one event loop"
    left = [thread.name for thread in threading.enumerate() if thread.name == "outbox-listener-loop"]
    assert left == [], "the loop ends with the member"


def test_as_many_listeners_wait_at_a_time_as_there_are_workers(inbox: InboxStage, topic: str) -> None:
    running, most, go_on = 0, 0, threading.Event()

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await apply(conn, message)
        await asyncio.to_thread(go_on.wait, 60)
        running -= 1
        return SUCCESS

    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic, listener, workers=5):
        wait_until(lambda: running == 5, "five of them wait at once")
        go_on.set()
        inbox.wait_applied(20)
    assert most == 5


def test_a_failing_asynchronous_listener_is_tried_again(inbox: InboxStage, topic: str) -> None:
    seen: Counter[int] = Counter()

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await apply(conn, message)
        if message.body == b"3":
            seen[message.reconsume_times] += 1
            if message.reconsume_times == 0:
                raise ValueError("not yet")
            if message.reconsume_times == 1:
                return LATER
        return SUCCESS

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, listener, orderly=True, retry_workers=4):
        inbox.wait_applied(8)
    assert seen == {0: 1, 1: 1, 2: 1}
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_listener_that_runs_too_long_is_cancelled(inbox: InboxStage, topic: str) -> None:
    cancelled: list[str] = []

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await apply(conn, message)
        if message.reconsume_times == 0:
            try:
                if message.body == b"0":
                    await conn.execute("SELECT pg_sleep(600)")
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(threading.current_thread().name)
                raise
        return SUCCESS

    inbox.produce_numbered(topic, 2)
    with inbox.consumer(topic, listener, timeout=1.0) as consumer:
        inbox.wait_applied(2)
        assert consumer._seats._lost == [], "no thread was given up"
    assert len(cancelled) == 2


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), ValueError("no")], ids=repr)
def test_whatever_an_asynchronous_listener_raises_stops_no_other(
    inbox: InboxStage, topic: str, raised: BaseException
) -> None:
    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await apply(conn, message)
        if message.body == b"0":
            raise raised
        return SUCCESS

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        inbox.wait_applied(7)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one is dead")
    name = type(raised).__name__
    assert inbox.count("outbox.inbox_parked", f"fingerprint LIKE '{name} at %listener%'") == 1


def test_time_outs_of_the_application_are_its_own(inbox: InboxStage, topic: str) -> None:
    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert inbox.count("outbox.inbox_parked", "fingerprint LIKE 'TimeoutError at %listener%'") == 1


@pytest.mark.parametrize("method", ["commit", "rollback"])
def test_commit_and_rollback_of_the_lent_connection_end_nothing(
    inbox: InboxStage, topic: str, method: str
) -> None:
    seen: list[int] = []

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        await apply(conn, message)
        if message.reconsume_times == 0:
            with pytest.raises(ListenerError, match="leave out COMMIT"):
                await getattr(conn, method)()
            raise ValueError("what was written so far is taken back")
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener):
        inbox.wait_applied(1)
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "the retry is done")
    assert (inbox.count("applied"), seen) == (1, [0, 1])


@pytest.mark.parametrize("ending", ["COMMIT", "ROLLBACK", "COMMIT AND CHAIN"])
def test_an_asynchronous_listener_that_ends_its_transaction_applies_nothing_twice(
    inbox: InboxStage, topic: str, ending: str
) -> None:
    refused: list[str] = []

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await apply(conn, message)
        if message.reconsume_times == 0:
            try:
                await conn.execute(ending.encode())
            except ListenerError:
                with pytest.raises(ListenerError):
                    await apply(conn, message)
                refused.append(ending)
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener):
        inbox.wait_applied(1)
        wait_until(
            lambda: inbox.count("outbox.inbox_parked", "state = 'dead'") or ending == "ROLLBACK", "it is dead"
        )
        wait_until(lambda: not inbox.count("outbox.inbox_parked", "state = 'retry'"), "nothing is due")
    assert inbox.count("applied") == 1
    assert inbox.count("outbox.inbox_parked") == (0 if ending == "ROLLBACK" else 1)
    assert refused == ([] if "CHAIN" in ending else [ending])


def test_a_task_that_is_left_behind_writes_into_no_other_transaction(inbox: InboxStage, topic: str) -> None:
    failures: list[BaseException | None] = []
    tasks: list[asyncio.Task[None]] = []
    returned = threading.Event()

    async def late(conn: Connection) -> None:
        await asyncio.to_thread(returned.wait, 60)
        await conn.execute(INSERT, ["00000000-0000-0000-0000-000000000000", "late", "late"])

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if not tasks:
            tasks.append(asyncio.create_task(late(conn)))
            tasks[0].add_done_callback(lambda task: failures.append(task.exception()))
        return await apply(conn, message)

    inbox.produce_numbered(topic, 4)
    with inbox.consumer(topic, listener, workers=1):
        inbox.wait_applied(4)
        returned.set()
        wait_until(lambda: failures, "the task has ended")
        inbox.produce_numbered(topic, 4, start=4)
        inbox.wait_applied(8)
    assert isinstance(failures[0], AttributeError)
    assert "late" not in inbox.applied("body")


def test_what_an_asynchronous_listener_sends_leaves_with_its_effect(inbox: InboxStage, topic: str) -> None:
    outbox = AsyncOutbox(producer_group="points")

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await apply(conn, message)
        async with conn.transaction():
            await outbox.send(conn, Message("points", body=message.body))
        return LATER if message.body == b"1" else SUCCESS

    inbox.produce_numbered(topic, 12, keys=1)
    with inbox.consumer(topic, listener, delays=DelaySchedule.of([])):
        inbox.wait_applied(11)
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one has failed")
    sent = inbox.conn.execute("SELECT convert_from(body, 'UTF8') FROM outbox.message").fetchall()
    assert sorted(int(body) for (body,) in sent) == [0, *range(2, 12)]


def test_an_asynchronous_listener_gets_batches(inbox: InboxStage, make_topic: MakeTopic) -> None:
    topic = make_topic(partitions=1)
    sizes: list[int] = []

    async def listener(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        sizes.append(len(messages))
        for message in messages:
            await apply(conn, message)
        return [LATER if each.body == b"7" and not each.reconsume_times else SUCCESS for each in messages]

    inbox.produce_numbered_in(topic, 30)
    with inbox.consumer(topic, listener, batch=10, linger=1.0, workers=1):
        inbox.wait_applied(30)
    assert sorted(map(int, inbox.applied("body"))) == list(range(30))
    assert max(sizes) == 10


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_task_that_ends_the_event_loop_fails_no_other_message(
    inbox: InboxStage, topic: str, raised: type[BaseException]
) -> None:
    async def leave() -> None:
        raise raised("a task of the listener")

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0":
            await asyncio.gather(leave())
        await asyncio.sleep(0.01)
        return await apply(conn, message)

    inbox.produce_numbered(topic, 40, keys=40)
    with inbox.consumer(topic, listener, workers=4, delays=DelaySchedule.of([3600])):
        inbox.wait_applied(39)
        parked = "SELECT convert_from(body, 'UTF8') FROM outbox.inbox_parked"
        wait_until(lambda: inbox.conn.execute(parked).fetchall() == [("0",)], "only that one is parked")
    assert sorted(map(int, inbox.applied("body"))) == list(range(1, 40))


@pytest.mark.parametrize("in_sql", [True, False], ids=["in a statement", "elsewhere"])
def test_the_end_of_a_member_counts_no_attempt_of_a_running_retry(
    inbox: InboxStage, topic: str, in_sql: bool
) -> None:
    running = threading.Event()

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        await apply(conn, message)
        if not message.reconsume_times:
            return LATER
        running.set()
        if in_sql:
            await conn.execute("SELECT pg_sleep(3600)")
        await asyncio.sleep(3600)
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, listener, drain=0.2, delays=DelaySchedule.of([0])):
        assert running.wait(60)
    idle = "SELECT FROM outbox.inbox_parked FOR UPDATE SKIP LOCKED"
    wait_until(lambda: inbox.conn.execute(idle).rowcount == 1, "no transaction has the row")
    assert inbox.conn.execute("SELECT state, attempts FROM outbox.inbox_parked").fetchall() == [("retry", 1)]
    assert inbox.count("applied") == 0


def test_the_end_of_a_member_parks_no_message_that_its_listener_has_not_finished(
    inbox: InboxStage, topic: str
) -> None:
    running, again = threading.Event(), threading.Event()

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if not again.is_set():
            running.set()
            await asyncio.sleep(3600)
        return await apply(conn, message)

    inbox.produce_numbered(topic, 4)
    with inbox.consumer(topic, listener, drain=0.2):
        assert running.wait(60)
    again.set()
    with inbox.consumer(topic, listener):
        inbox.wait_applied(4)
    assert inbox.count("outbox.inbox_parked") == 0


def test_the_end_of_a_member_waits_for_all_its_listeners_together(inbox: InboxStage, topic: str) -> None:
    """Other members may have their messages by then, and wait for them; one by one they would take 11 s."""
    running: list[bytes | None] = []

    async def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        running.append(message.body)
        await asyncio.Event().wait()
        return SUCCESS

    inbox.produce_numbered(topic, 10)
    member = inbox.consumer(topic, listener, workers=10, drain=1.0).start()
    wait_until(lambda: len(running) == 10, "all listeners run")
    with Stopwatch() as watch:
        member.close()
    assert watch.seconds < 9.0
    assert inbox.count("applied") == inbox.count("outbox.inbox") == inbox.count("outbox.inbox_parked") == 0
