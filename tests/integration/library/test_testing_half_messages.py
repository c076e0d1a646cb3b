"""Half messages in tests of applications: decided by the test, or by the listeners as the checker asks them."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.checking import Answer, FailedAnswer, Listeners, LocalTransactionState, MessageView
from outbox.testing import AsyncSentMessages, SentMessages

pytestmark = pytest.mark.feature("H-31")
GROUP = Outbox(producer_group="payments")


def prepare(conn: psycopg.Connection[Any], *keys: str, checker: str | None = "payment") -> None:
    for key in keys:
        GROUP.prepare(conn, Message("payments", key=key, checker=checker, biz_id=key, headers={"h": key}))


def states(sent: SentMessages) -> dict[bytes | None, str]:
    return {each.key: each.state for each in sent.all()}


def test_a_test_decides_the_half_messages_that_fit(database: str) -> None:
    with psycopg.connect(database) as conn:
        prepare(conn, "before")
        sent = SentMessages(conn)
        prepare(conn, "1", "2", "3")
        [one] = sent.commit("payments", key="1")
        assert (one.key, one.state) == (b"1", "COMMITTED")
        with pytest.raises(AssertionError, match="expected an undecided half message of 'payments', key='1'"):
            sent.rollback("payments", key="1")
        assert [each.state for each in sent.rollback("payments")] == ["ROLLED_BACK", "ROLLED_BACK"]
        assert states(sent) == {b"1": "COMMITTED", b"2": "ROLLED_BACK", b"3": "ROLLED_BACK"}
        assert [record.key for record in sent.drain()] == [b"1"]
        conn.rollback()


def listeners_of(replies: dict[str, Any], seen: list[MessageView], *, is_async: bool = False) -> Listeners:
    listeners = Listeners()

    def check(view: MessageView) -> Any:
        seen.append(view)
        reply = replies[view.biz_id or ""]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def check_later(view: MessageView) -> Any:
        await asyncio.sleep(0)
        return check(view)

    listeners.register(check_later if is_async else check, checker="payment")
    return listeners


REPLIES = {
    "1": LocalTransactionState.COMMIT,
    "2": Answer(LocalTransactionState.ROLLBACK, "no payment"),
    "3": LocalTransactionState.UNKNOWN,
    "4": ValueError("broken"),
    "5": "sometimes",
    "6": True,
}
DECIDED = {
    b"1": "COMMITTED",
    b"2": "ROLLED_BACK",
    b"3": "UNKNOWN",
    b"4": "UNKNOWN",
    b"5": "UNKNOWN",
    b"6": "COMMITTED",
}


@pytest.mark.parametrize("is_async", [False, True])
def test_listeners_are_asked_as_the_checker_asks_them(database: str, is_async: bool) -> None:
    seen: list[MessageView] = []
    listeners = listeners_of(REPLIES, seen, is_async=is_async)
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        prepare(conn, *REPLIES)
        replies = sent.ask(listeners)
        assert states(sent) == DECIDED
        assert [view.biz_id for view in seen] == [view.biz_id for view, _ in replies] == list(REPLIES)
        view = seen[0]
        assert (view.producer_group, view.topic, view.key) == ("payments", "payments", b"1")
        assert (view.headers, view.checker, view.checks) == ({"h": "1"}, "payment", 0)
        failed = {view.biz_id: reply.remark for view, reply in replies if isinstance(reply, FailedAnswer)}
        assert set(failed) == {"4", "5"}
        assert "broken" in (failed["4"] or "")
        [rolled_back] = conn.execute(
            "SELECT remark FROM outbox.message WHERE state = 'ROLLED_BACK'"
        ).fetchall()
        assert rolled_back == ("no payment",)
        seen.clear()
        sent.ask(listeners)
        assert [view.biz_id for view in seen] == ["3", "4", "5"]
        conn.rollback()


@pytest.mark.parametrize("is_async", [False, True])
def test_listeners_are_asked_in_the_event_loop(database: str, is_async: bool) -> None:
    seen: list[MessageView] = []

    async def work() -> None:
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as conn:
            sent = await AsyncSentMessages.begin(conn)
            with psycopg.connect(database) as other:
                prepare(other, *REPLIES)
            await sent.ask(listeners_of(REPLIES, seen, is_async=is_async))
            assert {each.key: each.state for each in await sent.all()} == DECIDED

    asyncio.run(work())
    assert len(seen) == len(REPLIES)


def test_a_half_message_without_a_listener_fails_the_test(database: str) -> None:
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        prepare(conn, "1", checker="refund")
        with pytest.raises(AssertionError, match="no listener is registered for checker 'refund'"):
            sent.ask(listeners_of({}, []))
        assert states(sent) == {b"1": "UNKNOWN"}


def test_decisions_on_a_connection_in_autocommit_are_committed(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as watching, psycopg.connect(database) as conn:
        sent = SentMessages(watching)
        prepare(conn, "1")
        conn.commit()
        sent.commit("payments")
        with psycopg.connect(database) as third:
            assert third.execute("SELECT state FROM outbox.message").fetchall() == [("COMMITTED",)]
