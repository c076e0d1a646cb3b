"""The two thin drivers of this package: one performs the steps of a flow at once, one awaits them.

A flow is the logic of a programming model, written once: a generator that yields what is to be done as a call of
its driver's methods (`yield partial(io.begin, conn)`), and is sent the result or thrown the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Protocol, TypeAlias, TypeVar

import psycopg

from outbox.drivers import psycopg_async, psycopg_sync
from outbox.drivers.stepwise import run_in_steps
from outbox.operations.sender import Sender
from outbox.rocketmq.connections import AsyncConnections, Connections, Lease
from outbox.statements import Plan

T = TypeVar("T")

Step: TypeAlias = Callable[[], Any]
Flow: TypeAlias = Generator[Step, Any, T]


class IO(Protocol):
    """What flows ask for; the asynchronous driver's methods return awaitables of the same."""

    sender: Sender
    """The producer's group, selectors, registry, codecs and tracing, for the operations that flows run."""

    def open(self, *, fresh: bool = False) -> Any:
        """Take a connection: a `Lease`."""

    def close(self, lease: Lease) -> Any:
        """Give it back."""

    def begin(self, conn: Any) -> Any:
        """Begin a transaction, or a savepoint inside one; commit and rollback get what this returns."""

    def commit(self, transaction: Any) -> Any:
        """End it with COMMIT."""

    def rollback(self, transaction: Any) -> Any:
        """End it with ROLLBACK; quietly where the connection is lost, which did it already."""

    def run(self, conn: Any, plan: Plan[Any]) -> Any:
        """Run an operation of the outbox, inside the connection's transaction."""

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call the application's code."""


class BlockingIO:
    """Performs each step when asked."""

    def __init__(self, sender: Sender, connections: Connections) -> None:
        self.sender, self.connections = sender, connections

    def open(self, *, fresh: bool = False) -> Lease:
        """See `IO`."""
        return self.connections.take(fresh=fresh)

    def close(self, lease: Lease) -> None:
        """See `IO`."""
        self.connections.give(lease)

    def begin(self, conn: Any) -> Any:
        """See `IO`."""
        transaction = conn.transaction()
        transaction.__enter__()
        return transaction

    def commit(self, transaction: Any) -> None:
        """See `IO`."""
        transaction.__exit__(None, None, None)

    def rollback(self, transaction: Any) -> None:
        """See `IO`."""
        transaction.__exit__(psycopg.Rollback, psycopg.Rollback(), None)

    def run(self, conn: Any, plan: Plan[T]) -> T:
        """See `IO`."""
        return psycopg_sync.run(conn, plan)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `IO`."""
        result = function(*args)
        if inspect.iscoroutine(result):
            result.close()  # never to be awaited; answers of this kind are refused by their type
        return result


class AwaitingIO:
    """Awaits each step; the application's code may be synchronous, if it does not block."""

    def __init__(self, sender: Sender, connections: AsyncConnections) -> None:
        self.sender, self.connections = sender, connections

    def open(self, *, fresh: bool = False) -> Awaitable[Lease]:
        """See `IO`."""
        return self.connections.take(fresh=fresh)

    def close(self, lease: Lease) -> Awaitable[None]:
        """See `IO`."""
        return self.connections.give(lease)

    async def begin(self, conn: Any) -> Any:
        """See `IO`."""
        transaction = conn.transaction()
        await transaction.__aenter__()
        return transaction

    async def commit(self, transaction: Any) -> None:
        """See `IO`."""
        await transaction.__aexit__(None, None, None)

    async def rollback(self, transaction: Any) -> None:
        """See `IO`."""
        await transaction.__aexit__(psycopg.Rollback, psycopg.Rollback(), None)

    def run(self, conn: Any, plan: Plan[T]) -> Awaitable[T]:
        """See `IO`; a codec that waits for something else does so in a thread."""
        if self.sender.blocks:
            return run_in_steps(lambda each: psycopg_async.run(conn, each), plan)
        return psycopg_async.run(conn, plan)

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """See `IO`."""
        result = function(*args)
        return await result if inspect.isawaitable(result) else result


def perform(flow: Flow[T]) -> T:
    """Run a flow of a `BlockingIO` to its end."""
    resume: Callable[[Any], Step] = flow.send
    value: Any = None
    try:
        while True:
            step = resume(value)
            try:
                value = step()
                resume = flow.send
            except BaseException as error:  # noqa: BLE001  # handed to the flow, which raises what it does not handle
                value, resume = error, flow.throw
    except StopIteration as done:
        result: T = done.value
        return result


async def perform_async(flow: Flow[T]) -> T:
    """Run a flow of an `AwaitingIO` to its end; a cancellation reaches it as an error of the step it was in."""
    resume: Callable[[Any], Step] = flow.send
    value: Any = None
    try:
        while True:
            step = resume(value)
            try:
                value = await step()
                resume = flow.send
            except BaseException as error:  # noqa: BLE001  # handed to the flow, which raises what it does not handle
                value, resume = error, flow.throw
    except StopIteration as done:
        result: T = done.value
        return result
