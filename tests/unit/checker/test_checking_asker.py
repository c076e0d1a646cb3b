"""Asking the listeners of this process: who is found, what is called, and what its answer means."""

from __future__ import annotations

import asyncio
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest

from outbox.checking import Answer, FailedAnswer, ListenerAsker, Listeners, LocalTransactionState
from outbox.records import MessageView

STATE = LocalTransactionState


def view(**values: Any) -> MessageView:
    return MessageView(
        **{
            "id": 1,
            "message_id": uuid.uuid4(),
            "topic": "payments",
            "producer_group": "g",
            "born_at": datetime.now(UTC),
            **values,
        }
    )


def asker(listener: Any) -> ListenerAsker:
    listeners = Listeners()
    listeners.register(listener)
    return ListenerAsker(listeners)


class Old:
    """RocketMQ 4.x."""

    def check_local_transaction(self, view: MessageView) -> STATE:
        return STATE.COMMIT_MESSAGE


class New:
    """RocketMQ 5.x."""

    def check(self, view: MessageView) -> bool:
        return False


async def later(view: MessageView) -> STATE:
    await asyncio.sleep(0)
    return STATE.ROLLBACK


@pytest.mark.feature("S-68", "S-71")
@pytest.mark.parametrize(
    ("listener", "state"),
    [
        (Old(), STATE.COMMIT),
        (New(), STATE.ROLLBACK),
        (lambda view: True, STATE.COMMIT),
        (later, STATE.ROLLBACK),
        (lambda view: None, STATE.UNKNOWN),
    ],
    ids=["4.x", "5.x", "callable", "coroutine", "None"],
)
def test_listeners_of_both_models_and_callables_answer(listener: Any, state: STATE) -> None:
    assert asker(listener).ask(view(), time.monotonic() + 5).state == state


@pytest.mark.feature("S-48")
def test_an_exception_is_unknown_with_rocketmq_s_remark() -> None:
    def fail(view: MessageView) -> bool:
        raise ValueError("no such order")

    answer = asker(fail).ask(view(), time.monotonic() + 5)
    assert answer == (STATE.UNKNOWN, "checkLocalTransactionState exception: ValueError: no such order")
    assert isinstance(answer, FailedAnswer)


@pytest.mark.feature("S-48")
@pytest.mark.parametrize("value", ["paid", 1, object(), Answer("paid")])  # type: ignore[arg-type]
def test_a_value_that_is_not_a_state_is_a_failure_and_not_quoted(value: Any) -> None:
    answer = asker(lambda view: value).ask(view(), time.monotonic() + 5)
    assert isinstance(answer, FailedAnswer)
    assert answer.state == STATE.UNKNOWN
    assert "expected COMMIT, ROLLBACK or UNKNOWN" in str(answer.remark)
    assert "paid" not in str(answer.remark)


@pytest.mark.feature("S-48")
@pytest.mark.parametrize("value", [None, "UNKNOWN", Answer(STATE.UNKNOWN, "pending")])
def test_an_answer_unknown_is_no_failure(value: Any) -> None:
    answer = asker(lambda view: value).ask(view(), time.monotonic() + 5)
    assert (answer.state, isinstance(answer, FailedAnswer)) == (STATE.UNKNOWN, False)


@pytest.mark.feature("S-47")
def test_a_coroutine_is_cancelled_at_the_deadline() -> None:
    cancelled = []

    async def hang(view: MessageView) -> bool:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.append(view)
            raise
        return True

    answer = asker(hang).ask(view(), time.monotonic() + 0.05)
    assert isinstance(answer, FailedAnswer)
    assert answer.state == STATE.UNKNOWN
    assert len(cancelled) == 1


@pytest.mark.feature("S-49")
def test_a_checker_that_nobody_registered_is_missing_and_so_is_one_of_two() -> None:
    listeners = Listeners()
    listeners.register(New(), topic="payments", tag="a")
    listeners.register(Old(), topic="payments", tag="b")
    asking = ListenerAsker(listeners)
    assert asking.missing(view(tags=("a",))) is None
    assert "checker 'x'" in str(asking.missing(view(checker="x", tags=("a",))))
    assert "has two" in str(asking.missing(view(tags=("a", "b"))))
