"""The event loop in which a member runs its asynchronous listeners, on a thread of its own.

A thread of the member submits a call and waits until it has ended. Each call has a future, and ends in one of these
ways:

- its task ends: the thread gets the result, or what was raised;
- the member ends (`close`): tasks that still run are cancelled, and what is raised because of that is an interruption
  (`InterruptedListenerError`), not a failure of the message;
- the loop itself fails: what has not ended by then is an interruption, too. The next call starts another loop.

A task that a listener started may raise SystemExit or KeyboardInterrupt, which end `run_forever`. The loop runs on:
the listener that awaits the task gets what it raised, and no other one is disturbed.

Submitting a call, asking for the end, and giving up what is left are under one lock, so each call is either refused, or
its future is ended by its task or by the thread of the loop in its last step, which is in a `finally`. If the process
dies, PostgreSQL ends the transactions.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from outbox.inbox.failures import InterruptedListenerError

T = TypeVar("T")
log = logging.getLogger("outbox.inbox")


class ListenerLoop:
    """The event loop of one member; it starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pending: set[Future[Any]] = set()
        self._interrupted: set[Future[Any]] = set()
        """Those of the pending ones that ran when the loop was to end."""
        self._closes = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run something in the loop, and wait for its result or for what it raises.

        Raises:
            InterruptedListenerError: The member ends, or the loop has failed.
        """
        future: Future[T] = Future()
        try:
            self._submit(coroutine, future)
            return future.result()
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()

    def close(self, seconds: float) -> None:
        """Cancel what still runs, end the loop, and wait for that so many seconds; later calls are refused."""
        with self._lock:
            self._closes = True
            thread, loop = self._thread, self._loop
            if loop is not None:
                loop.call_soon_threadsafe(loop.stop)
        if thread is not None:
            thread.join(seconds)

    def _submit(self, coroutine: Coroutine[Any, Any, T], future: Future[T]) -> None:
        with self._lock:
            if self._closes:
                raise InterruptedListenerError("the member ends, and runs no further listener")
            if self._loop is None:
                try:
                    self._start()
                except (OSError, RuntimeError) as error:
                    raise InterruptedListenerError(f"no event loop for listeners: {error}") from error
            assert self._loop is not None  # noqa: S101  (it has just started)
            self._pending.add(future)
            self._loop.call_soon_threadsafe(self._begin, self._loop, coroutine, future)

    def _start(self) -> None:
        """Start a loop; the system may have no files or threads left for it."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._serve, args=(loop,), name="outbox-listener-loop", daemon=True)
        try:
            thread.start()
        except BaseException:
            loop.close()
            raise
        self._loop, self._thread = loop, thread

    def _begin(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, T], future: Future[T]
    ) -> None:
        if future in self._interrupted:
            self._end(future)
            return

        async def keep() -> None:
            """Await the call and keep what comes of it: SystemExit would end the loop if it were let pass."""
            try:
                self._end(future, result=await coroutine)
            except BaseException as error:  # noqa: BLE001  (it is raised in the thread that waits)
                self._end(future, error)

        try:
            # The task ends without a step if it is cancelled before its first one.
            loop.create_task(keep()).add_done_callback(lambda _: self._end(future))
        except Exception as error:  # noqa: BLE001  (of a task factory of the application)
            self._end(future, error)

    def _end(self, future: Future[T], error: BaseException | None = None, **result: T) -> None:
        """Hand over what came of a call, once; neither error nor result: it was cancelled."""
        with self._lock:
            is_interrupted = future in self._interrupted
            self._pending.discard(future)
            self._interrupted.discard(future)
            if future.done():
                return
            if result:
                future.set_result(result["result"])
            elif is_interrupted:
                interrupted = InterruptedListenerError("the event loop of the listeners ended while one ran")
                interrupted.__cause__ = error
                future.set_exception(interrupted)
            else:
                future.set_exception(error or asyncio.CancelledError())

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run the loop until the member ends."""
        try:
            while not self._closes:
                _run_through(loop)
            self._cancel(loop)
        except BaseException:
            log.exception("the event loop of the listeners failed; the next listener starts another one")
        finally:
            self._give_up(loop)
            with suppress(Exception):  # of a loop that has failed before
                loop.close()

    def _cancel(self, loop: asyncio.AbstractEventLoop) -> None:
        """Cancel what runs, and wait for it."""
        with self._lock:
            self._interrupted |= self._pending
        cancelled: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks(loop):
            for task in tasks - cancelled:
                task.cancel()
            cancelled |= tasks
            # RuntimeError: the loop was stopped meanwhile, by `close` or by a listener.
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):
                loop.run_until_complete(asyncio.wait(tasks))
        with suppress(SystemExit, KeyboardInterrupt, RuntimeError):
            loop.run_until_complete(loop.shutdown_asyncgens())

    def _give_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the records of calls whose tasks will not end any more; none can be submitted to this loop afterwards."""
        with self._lock:
            if self._loop is loop:
                self._loop = None
            left = list(self._pending)
            self._interrupted |= self._pending
        for future in left:
            self._end(future)


def _run_through(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, or until a task raises SystemExit or KeyboardInterrupt."""
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt):
        # The task has ended with it; whoever awaits the task gets it.
        log.warning("a task of a listener tried to end its thread; the event loop runs on", exc_info=True)
