"""`AsyncSentMessages`: `SentMessages` for asynchronous connections, awaited."""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Self, TypeVar

from outbox.calls import AsyncOutboxCalls
from outbox.checking import Answer, ListenerAsker, Listeners, MessageView
from outbox.drivers import psycopg_async
from outbox.operations.decide import commit, rollback
from outbox.statements import Plan
from outbox.testing.expectations import Expected
from outbox.testing.messages import SentMessage, newest, sent, undecided
from outbox.testing.records import Log, PublishedRecord
from outbox.testing.sent_messages import (
    REMARK,
    again,
    decision,
    is_idle,
    require_listener,
    undecided_of,
)

T = TypeVar("T")


class AsyncSentMessages:
    """The messages that were sent after `begin`, as its connection sees them; see `SentMessages`."""

    def __init__(self, conn: Any, outbox: AsyncOutboxCalls[Any] | None, after: int) -> None:
        self._conn, self._outbox, self._after = conn, outbox, after
        self._log = Log()

    @classmethod
    async def begin(cls, conn: Any, outbox: AsyncOutboxCalls[Any] | None = None) -> Self:
        """Begin now; the arguments are those of `SentMessages`."""
        begun = cls(conn, outbox, 0)
        begun._after = await begun._run(newest())
        return begun

    async def all(self, topic: str | None = None) -> list[SentMessage]:
        """See `SentMessages.all`."""
        return await self._run(sent(self._after, topic))

    async def assert_sent(self, topic: str, *, count: int = 1, **fields: Any) -> list[SentMessage]:
        """See `SentMessages.assert_sent`."""
        return Expected.of(topic, **fields).require(await self.all(), count)

    async def refute_sent(self, topic: str, **fields: Any) -> None:
        """See `SentMessages.refute_sent`."""
        await self.assert_sent(topic, **fields, count=0)

    async def drain(
        self, deliver: Callable[[PublishedRecord], object] | None = None, *, delayed: bool = False
    ) -> list[PublishedRecord]:
        """See `SentMessages.drain`; what `deliver` returns is awaited if it can be."""
        drained = []
        while found := await self._run(self._log.read(self._after, delayed=delayed)):
            for id_, record in found:
                if deliver is not None:
                    await _awaited(deliver(record))
                self._log.done(id_)
                drained.append(record)
        return drained

    async def commit(self, topic: str, **fields: Any) -> list[SentMessage]:
        """See `SentMessages.commit`."""
        return await self._decide(commit, topic, fields)

    async def rollback(self, topic: str, **fields: Any) -> list[SentMessage]:
        """See `SentMessages.rollback`."""
        return await self._decide(rollback, topic, fields)

    async def ask(self, listeners: Listeners) -> list[tuple[MessageView, Answer]]:
        """See `SentMessages.ask`; the listener runs in this event loop."""
        asker, replies = ListenerAsker(listeners), []
        for view in await self._run(undecided(self._after)):
            require_listener(asker, view)
            answer = await asker.ask_here(view)
            plan = decision(view, answer)
            if plan is not None:
                await self._run(plan)
            replies.append((view, answer))
        return replies

    async def _decide(
        self, decide: Callable[..., Plan[Any]], topic: str, fields: dict[str, Any]
    ) -> list[SentMessage]:
        found = undecided_of(Expected.of(topic, **fields), await self.all())
        for each in found:
            await self._run(decide(str(each.message_id), REMARK))
        return again(found, await self.all())

    async def _run(self, plan: Plan[T]) -> T:
        if self._outbox is not None:
            return await self._outbox._run(self._conn, plan)
        if is_idle(self._conn):
            async with self._conn.transaction():
                return await psycopg_async.run(self._conn, plan)
        return await psycopg_async.run(self._conn, plan)


async def _awaited(value: object) -> None:
    if isawaitable(value):
        await value
