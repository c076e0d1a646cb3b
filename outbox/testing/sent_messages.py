"""`SentMessages`: what a test asks about the messages of its connection, and what it has done with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import psycopg
from psycopg import pq

from outbox.calls import OutboxCalls
from outbox.checking import Answer, FailedAnswer, ListenerAsker, Listeners, LocalTransactionState, MessageView
from outbox.drivers import psycopg_sync
from outbox.operations.decide import commit, rollback
from outbox.statements import Plan
from outbox.testing.expectations import Expected
from outbox.testing.messages import SentMessage, newest, sent, undecided
from outbox.testing.records import Log, PublishedRecord

T = TypeVar("T")
CHECK_SECONDS = 30.0
"""How long a listener that is a coroutine may take."""
REMARK = "decided by the test"


class SentMessages:
    """The messages that were sent after this object was made, as its connection sees them.

    Args:
        conn: the connection by which the code under test sends, or another one, which sees what is committed.
        outbox: the adapter's outbox by which it sends, if it sends by another library than psycopg.
    """

    def __init__(self, conn: Any, outbox: OutboxCalls[Any] | None = None) -> None:
        self._conn, self._outbox = conn, outbox
        self._after = self._run(newest())
        self._log = Log()

    def all(self, topic: str | None = None) -> list[SentMessage]:
        """Return them in the order in which they were sent.

        Args:
            topic: only those of this topic.
        """
        return self._run(sent(self._after, topic))

    def assert_sent(self, topic: str, *, count: int = 1, **fields: Any) -> list[SentMessage]:
        """Fail unless exactly `count` messages fit everything that is given; return them.

        Args:
            topic: their topic.
            count: how many; 0 is what `refute_sent` asks.
            fields: what they have to fit:
                key: their key; text is UTF-8.
                body: their body: bytes, text, None, or what its JSON reads as (a dict, a list, a number).
                headers: headers that they have, among others.
                tags: tags that they have, among others.
                state: COMMITTED for messages that were sent, UNKNOWN for half messages.

        Raises:
            AssertionError: with what was sent, that which fits best first.
        """
        return Expected.of(topic, **fields).require(self.all(), count)

    def refute_sent(self, topic: str, **fields: Any) -> None:
        """Fail if a message was sent that fits; takes what `assert_sent` takes.

        Raises:
            AssertionError: with what was sent.
        """
        self.assert_sent(topic, **fields, count=0)

    def drain(
        self, deliver: Callable[[PublishedRecord], object] | None = None, *, delayed: bool = False
    ) -> list[PublishedRecord]:
        """Hand over what a relay would publish now, each message once and in the relay's order; return it.

        What `deliver` sends itself is handed over too, before this returns. If it raises, the next `drain` begins with
        the same message again, as a consumer of Kafka would. Nothing is written: a relay still publishes what is
        committed.

        Args:
            deliver: the application's consumer; it gets one record at a time.
            delayed: also hand over messages whose time has not come, in the order of their times.
        """
        drained = []
        while found := self._run(self._log.read(self._after, delayed=delayed)):
            for id_, record in found:
                if deliver is not None:
                    deliver(record)
                self._log.done(id_)
                drained.append(record)
        return drained

    def commit(self, topic: str, **fields: Any) -> list[SentMessage]:
        """Commit each undecided half message that fits, and return them as they are then.

        Args:
            topic: their topic.
            fields: as for `assert_sent`.

        Raises:
            AssertionError: no undecided half message fits; with what was sent.
        """
        return self._decide(commit, topic, fields)

    def rollback(self, topic: str, **fields: Any) -> list[SentMessage]:
        """Roll back each undecided half message that fits; as `commit`."""
        return self._decide(rollback, topic, fields)

    def ask(self, listeners: Listeners) -> list[tuple[MessageView, Answer]]:
        """Ask about each undecided half message now, as the checker would when it is overdue, and decide as replied.

        The listener runs in this thread. A half message stays undecided if its reply is UNKNOWN, or if the listener
        raises, which is a `FailedAnswer` with the exception in its remark. The settings of the group, such as its
        policy, do not apply.

        Args:
            listeners: those of the application.

        Returns:
            What was asked about, and the replies.

        Raises:
            AssertionError: no listener is registered for a half message.
        """
        asker, replies = ListenerAsker(listeners), []
        for view in self._run(undecided(self._after)):
            require_listener(asker, view)
            answer = asker.ask(view, time.monotonic() + CHECK_SECONDS)
            plan = decision(view, answer)
            if plan is not None:
                self._run(plan)
            replies.append((view, answer))
        return replies

    def _decide(
        self, decide: Callable[..., Plan[Any]], topic: str, fields: dict[str, Any]
    ) -> list[SentMessage]:
        found = undecided_of(Expected.of(topic, **fields), self.all())
        for each in found:
            self._run(decide(str(each.message_id), REMARK))
        return again(found, self.all())

    def _run(self, plan: Plan[T]) -> T:
        if self._outbox is not None:
            return self._outbox._run(self._conn, plan)
        if is_idle(self._conn):
            with self._conn.transaction():
                return psycopg_sync.run(self._conn, plan)
        return psycopg_sync.run(self._conn, plan)


def is_idle(conn: Any) -> bool:
    """Whether a connection of psycopg would refuse a plan, because it is in autocommit and in no transaction."""
    return (
        isinstance(conn, psycopg.Connection | psycopg.AsyncConnection)
        and conn.autocommit
        and conn.info.transaction_status == pq.TransactionStatus.IDLE
    )


def undecided_of(expected: Expected, messages: list[SentMessage]) -> list[SentMessage]:
    """Return the half messages that fit, one at least."""
    fields = {**expected.fields, "state": "UNKNOWN"}
    return expected._replace(fields=fields).require_some(messages)


def again(decided: list[SentMessage], messages: list[SentMessage]) -> list[SentMessage]:
    """Return the same messages as they are now."""
    ids = {each.id for each in decided}
    return [each for each in messages if each.id in ids]


def require_listener(asker: ListenerAsker, view: MessageView) -> None:
    """Fail where no listener can be asked.

    Raises:
        AssertionError: naming what is missing.
    """
    missing = asker.missing(view)
    if missing is not None:
        raise AssertionError(f"half message {view.message_id} of topic {view.topic!r}: {missing}")


def decision(view: MessageView, answer: Answer) -> Plan[Any] | None:
    """Return what follows from a reply; None: nothing."""
    if isinstance(answer, FailedAnswer) or answer.state is LocalTransactionState.UNKNOWN:
        return None
    decide = commit if answer.state is LocalTransactionState.COMMIT else rollback
    return decide(view, answer.remark)
