"""Starting and stopping a producer, for threads and for asyncio."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from outbox.operations.sender import Sender
from outbox.rocketmq.connections import AsyncConnections, Connections
from outbox.rocketmq.io import AwaitingIO, BlockingIO, perform, perform_async
from outbox.rocketmq.lifecycle import Life, refuse_async


class BlockingLife(Life):
    """A producer for threads, which share it freely."""

    def _connect(
        self,
        connect: Any,
        sender: Sender,
        connections: int,
        connection_timeout: float,
        checker_connect: Any,
        *,
        check: bool,
    ) -> None:
        self._io = self._driver = BlockingIO(sender, Connections(connect, connections, connection_timeout))
        usable = isinstance(connect, str) or not hasattr(connect, "connection")
        self._plan_checks(connect, checker_connect, check=check, usable=usable)

    def start(self) -> None:
        """Register the group, see that the topics take half messages, and begin to answer checks of this group.

        Raises:
            ProducerStateError: it was started before.
            GroupTypeError: the group is registered for other messages, or is not registered and sends normal ones.
            WrongMessageTypeError: so is one of `topics`.
            ConfigurationError: a listener is `async`, which this producer cannot await.
        """
        self._begin_start()
        for place in self.listeners:
            refuse_async(self.listeners.registered(place))
        self._driver.connections.reopen()
        perform(self._register())
        if self._check:
            self._checker = self._make_checker()
            self._checker.start()
        self._running = True

    def shutdown(self) -> None:
        """Stop answering checks and close the connections; those in use are closed when they are given back."""
        self._running = False
        checker, self._checker = self._checker, None
        if checker is not None:
            checker.stop()
        self._driver.connections.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()


class AwaitingLife(Life):
    """A producer for the tasks of one event loop."""

    def _connect(
        self,
        connect: Any,
        sender: Sender,
        connections: int,
        connection_timeout: float,
        checker_connect: Any,
        *,
        check: bool,
    ) -> None:
        self._io = self._driver = AwaitingIO(
            sender, AsyncConnections(connect, connections, connection_timeout)
        )
        self._plan_checks(connect, checker_connect, check=check, usable=isinstance(connect, str))

    async def start(self) -> None:
        """See `BlockingLife.start`; asynchronous listeners are asked on the event loop that this is called on."""
        self._begin_start()
        self._driver.connections.reopen()
        await perform_async(self._register())
        if self._check:
            self._checker = self._make_checker(asyncio.get_running_loop())
            await asyncio.to_thread(self._checker.start)
        self._running = True

    async def shutdown(self) -> None:
        """See `BlockingLife.shutdown`."""
        self._running = False
        checker, self._checker = self._checker, None
        if checker is not None:
            await asyncio.to_thread(checker.stop)
        await self._driver.connections.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.shutdown()
