"""Asynchronous listeners: `async def listener(conn: psycopg.AsyncConnection, message)`.

A thread of the member takes the message over, commits and parks, as for other listeners. In between it lends the
session of its connection to an `AsyncConnection`, runs the listener in the member's event loop, and waits. All
asynchronous listeners of a member share that loop, which has a thread of its own; as many run at a time as there are
workers, because each of them needs a transaction, and so a session, of its own.

Two objects of psycopg use one session, and never both at a time: the thread waits while the listener runs, and before
the thread goes on, the lent connection loses its session, under the lock that its statements hold. A task that the
listener started and did not await can therefore not write into the next message's transaction.

What `guard` refuses on the thread's connection is refused here, too: `commit()`, `rollback()`, and every statement
after one that ended the transaction. Statements are not prepared on the server, because psycopg would give names that
the thread's connection uses already.

A listener that runs past its time-out is cancelled, which psycopg hands on to a running statement; it has failed then.
Only if it does not end within CANCEL_TIME seconds, its thread is given up and its session is ended, as for other
listeners.
If the process dies, or PostgreSQL ends the transaction, between any two of these lines, nothing is committed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import psycopg

from outbox.errors import ListenerError
from outbox.inbox.listener_loop import ListenerLoop

T = TypeVar("T")
CANCEL_TIME = 15.0
"""Seconds that a listener which was cancelled has to end."""


def is_async(listener: Callable[..., object]) -> bool:
    """Return whether a listener has to be awaited."""
    called = getattr(listener, "__call__", None)  # noqa: B004  (its own method is asked for)
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(called)


def awaiting(
    listener: Callable[..., Awaitable[T]], loop: ListenerLoop, seconds: float
) -> Callable[[psycopg.Connection[Any], Any], T]:
    """Make a listener, of messages or of batches, of an asynchronous one.

    Args:
        listener: gets a `psycopg.AsyncConnection` and a message, or a list of them.
        loop: where it runs.
        seconds: its time-out.
    """

    async def called(conn: psycopg.Connection[Any], given: Any) -> T:
        async with _lent(conn) as own:
            scope = asyncio.timeout(seconds)
            try:
                async with scope:
                    return await listener(own, given)
            except TimeoutError as error:
                if scope.expired():
                    raise ListenerError(
                        f"the listener ran past its time-out of {seconds:g} s, and was cancelled"
                    ) from error
                raise

    return lambda conn, given: loop.run(called(conn, given))


@asynccontextmanager
async def _lent(conn: psycopg.Connection[Any]) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Lend the session of a connection that waits, and take it back."""
    pgconn = conn.pgconn
    handlers = pgconn.notice_handler, pgconn.notify_handler
    own = psycopg.AsyncConnection[Any](pgconn)
    own.prepare_threshold = None
    wait: Callable[..., Awaitable[Any]] = own.wait

    async def watch(generator: Any, *args: Any, **options: Any) -> Any:
        conn.wait(_nothing())  # raises if the transaction was ended
        try:
            return await wait(generator, *args, **options)
        finally:
            conn.wait(_nothing())  # notes it, and raises, if this statement has ended it

    async def commit() -> None:
        conn.commit()  # which the guard refuses

    async def rollback() -> None:
        conn.rollback()

    vars(own).update(wait=watch, commit=commit, rollback=rollback)
    try:
        yield own
    finally:
        async with own.lock:
            del own.pgconn
            pgconn.notice_handler, pgconn.notify_handler = handlers


def _nothing() -> Generator[Any, Any, None]:
    """Wait for nothing, so that only the guard of a connection acts."""
    yield from ()
