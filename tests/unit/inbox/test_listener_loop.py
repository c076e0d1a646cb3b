"""The event loop of asynchronous listeners: each call ends, and none disturbs another, however the loop is treated."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from outbox.inbox.failures import InterruptedListenerError
from outbox.inbox.listener_loop import ListenerLoop
from tests.support.waiting import wait_until

CALLS = 40
LIMIT_S = 60.0


@pytest.fixture
def loop(pool: ThreadPoolExecutor) -> Iterator[ListenerLoop]:
    """The loop of one member; it ends before the threads, which wait for it when a test fails half way."""
    loop = ListenerLoop()
    yield loop
    loop.close(LIMIT_S)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """The threads of one member."""
    with ThreadPoolExecutor(CALLS + 2) as pool:
        yield pool


async def leave() -> None:
    sys.exit("a task of the listener")


async def interrupt() -> None:
    raise KeyboardInterrupt


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def in_gather(child: Callable[[], Awaitable[None]]) -> None:
    await asyncio.gather(child(), asyncio.sleep(0))


async def in_a_group(child: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(child())
        group.create_task(asyncio.sleep(3600))


async def in_a_task(child: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await asyncio.create_task(child())


async def alone(child: Callable[[], Coroutine[Any, Any, None]]) -> None:
    await child()


def busy(loop: ListenerLoop, pool: ThreadPoolExecutor, go_on: threading.Event) -> list[Future[int]]:
    """Submit many calls that end once `go_on` is set."""

    async def call(number: int) -> int:
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return number

    return [pool.submit(loop.run, call(number)) for number in range(CALLS)]


@pytest.mark.parametrize("way", [in_gather, in_a_task, alone])
@pytest.mark.parametrize(
    ("child", "raised"),
    [(leave, SystemExit), (interrupt, KeyboardInterrupt), (cancel_itself, asyncio.CancelledError)],
)
def test_a_task_that_ends_the_loop_fails_its_own_call_only(
    loop: ListenerLoop,
    pool: ThreadPoolExecutor,
    way: Callable[..., Coroutine[Any, Any, None]],
    child: Callable[[], Coroutine[Any, Any, None]],
    raised: type[BaseException],
) -> None:
    go_on = threading.Event()
    calls = busy(loop, pool, go_on)
    for _ in range(3):
        with pytest.raises(raised):
            pool.submit(loop.run, way(child)).result(LIMIT_S)
    go_on.set()
    assert [call.result(LIMIT_S) for call in calls] == list(range(CALLS))


@pytest.mark.parametrize(("child", "raised"), [(leave, SystemExit), (interrupt, KeyboardInterrupt)])
def test_a_group_of_tasks_raises_what_ended_the_loop(
    loop: ListenerLoop,
    pool: ThreadPoolExecutor,
    child: Callable[[], Coroutine[Any, Any, None]],
    raised: type[BaseException],
) -> None:
    with pytest.raises(raised):
        pool.submit(loop.run, in_a_group(child)).result(LIMIT_S)


def test_a_task_that_nobody_awaits_ends_no_call(loop: ListenerLoop, pool: ThreadPoolExecutor) -> None:
    kept = []

    async def call() -> int:
        kept.append(asyncio.create_task(leave()))
        await asyncio.sleep(0.01)
        return 7

    assert pool.submit(loop.run, call()).result(LIMIT_S) == 7
    assert isinstance(kept[0].exception(), SystemExit)


def test_a_listener_that_stops_the_loop_ends_no_call(loop: ListenerLoop, pool: ThreadPoolExecutor) -> None:
    async def call() -> int:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return 7

    assert pool.submit(loop.run, call()).result(LIMIT_S) == 7


def test_the_end_interrupts_what_runs_and_refuses_what_comes(
    loop: ListenerLoop, pool: ThreadPoolExecutor
) -> None:
    running, ended = threading.Semaphore(0), []

    async def call() -> None:
        running.release()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(1)

    calls = [pool.submit(loop.run, call()) for _ in range(CALLS)]
    for _ in calls:
        assert running.acquire(timeout=LIMIT_S)
    loop.close(LIMIT_S)
    for each in calls:
        with pytest.raises(InterruptedListenerError):
            each.result(LIMIT_S)
    assert len(ended) == CALLS, "each listener could clean up"
    with pytest.raises(InterruptedListenerError):
        loop.run(call())


def test_whatever_a_cancelled_listener_raises_is_an_interruption(
    loop: ListenerLoop, pool: ThreadPoolExecutor
) -> None:
    running = threading.Semaphore(0)

    async def call(*, raises: bool) -> int:
        running.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raises:
                raise ValueError("of the application") from None
        return 7

    raising, returning = (pool.submit(loop.run, call(raises=raises)) for raises in (True, False))
    assert running.acquire(timeout=LIMIT_S)
    assert running.acquire(timeout=LIMIT_S)
    loop.close(LIMIT_S)
    with pytest.raises(InterruptedListenerError):
        raising.result(LIMIT_S)
    assert returning.result(LIMIT_S) == 7


def test_a_task_that_ends_the_loop_while_it_closes_leaves_no_call_waiting(
    loop: ListenerLoop, pool: ThreadPoolExecutor
) -> None:
    running = threading.Semaphore(0)

    async def call() -> None:
        running.release()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.gather(leave(), interrupt())

    calls = [pool.submit(loop.run, call()) for _ in range(CALLS)]
    for _ in calls:
        assert running.acquire(timeout=LIMIT_S)
    loop.close(LIMIT_S)
    for each in calls:
        with pytest.raises(InterruptedListenerError):
            each.result(LIMIT_S)


def test_calls_that_are_submitted_while_the_loop_closes_all_end(pool: ThreadPoolExecutor) -> None:
    async def call() -> int:
        await asyncio.sleep(0)
        return 7

    def outcome(loop: ListenerLoop) -> object:
        try:
            return loop.run(call())
        except InterruptedListenerError as error:
            return type(error)

    for _ in range(100):
        loop = ListenerLoop()
        assert outcome(loop) == 7
        calls = [pool.submit(outcome, loop) for _ in range(10)]
        loop.close(LIMIT_S)
        assert {each.result(LIMIT_S) for each in calls} <= {7, InterruptedListenerError}
        assert outcome(loop) is InterruptedListenerError


def test_a_call_that_has_not_begun_when_the_loop_ends_does_not_begin(
    loop: ListenerLoop, pool: ThreadPoolExecutor
) -> None:
    """Schedule: one call ends `run_forever`; behind it waits another one; the member has asked for the end by then."""
    holds, go_on, begun, kept = threading.Event(), threading.Event(), [], []

    async def ends() -> None:
        holds.set()
        go_on.wait(LIMIT_S)  # holds up the loop
        raise SystemExit

    async def first() -> None:
        kept.append(asyncio.create_task(ends()))
        await asyncio.Event().wait()

    async def second() -> None:
        begun.append(1)

    calls = [pool.submit(loop.run, first())]
    assert holds.wait(LIMIT_S)
    calls.append(pool.submit(loop.run, second()))
    wait_until(lambda: len(loop._pending) == 2, "it is submitted", seconds=LIMIT_S)
    loop.close(0)
    go_on.set()
    for each in calls:
        with pytest.raises(InterruptedListenerError):
            each.result(LIMIT_S)
    assert begun == []


def test_a_loop_that_fails_interrupts_its_calls_and_the_next_call_has_another_one(
    loop: ListenerLoop, pool: ThreadPoolExecutor
) -> None:
    """A call that its thread submits only after the failure would run in the other loop, and wait for `go_on` there."""
    go_on = threading.Event()
    calls = busy(loop, pool, go_on)
    wait_until(lambda: len(loop._pending) == CALLS, "they are submitted", seconds=LIMIT_S)

    def no_memory(_: float) -> None:
        raise OSError("no memory for events")

    async def breaks() -> None:
        selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        vars(selector)["select"] = no_memory
        await asyncio.Event().wait()

    with pytest.raises(InterruptedListenerError):
        pool.submit(loop.run, breaks()).result(LIMIT_S)
    for each in calls:
        with pytest.raises(InterruptedListenerError):
            each.result(LIMIT_S)
    go_on.set()
    assert [each.result(LIMIT_S) for each in busy(loop, pool, go_on)] == list(range(CALLS))
    gc.collect()  # what the failed loop left


def test_the_thread_of_the_loop_ends_with_it(loop: ListenerLoop, pool: ThreadPoolExecutor) -> None:
    with pytest.raises(SystemExit):
        pool.submit(loop.run, in_gather(leave)).result(LIMIT_S)
    loop.close(LIMIT_S)
    wait_until(
        lambda: "outbox-listener-loop" not in {thread.name for thread in threading.enumerate()},
        "its thread has ended",
        seconds=LIMIT_S,
    )
