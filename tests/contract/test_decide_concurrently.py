"""Two decide one half message at the same time: one wins, the other sees the winner; a joined one is let alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from outbox import HalfMessage, Message
from outbox.errors import DecidedOtherwiseError, InvalidMessageError, UnknownMessageError
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import WAIT, Session, is_blocked, wait_until

PAYMENT = Message("payments", key="p-7", body="charged")
ASK = "SELECT id FROM outbox.message WHERE state = 'UNKNOWN' FOR UPDATE SKIP LOCKED"
"""How a checker finds what it may ask about."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
def second(make_session: MakeSession) -> Session:
    """Another decider."""
    return make_session(producer_group="orders")


@pytest.fixture
def half(session: Session) -> HalfMessage:
    """A half message whose transaction has committed."""
    prepared = session.prepare(PAYMENT)
    session.commit()
    return prepared


def blocked(
    pool: ThreadPoolExecutor, observer: Session, session: Session, work: Callable[[], Any]
) -> Future[Any]:
    """Start the work in a thread and return when the session waits for another one's lock."""
    future = pool.submit(work)
    wait_until(lambda: future.done() or is_blocked(observer, session.pid), "blocked by the first decider")
    assert not future.done()
    return future


@pytest.mark.feature("S-14")
@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_decider_that_waited_sees_the_winner(
    session: Session,
    second: Session,
    observer: Session,
    half: HalfMessage,
    pool: ThreadPoolExecutor,
    *,
    isolation: str,
) -> None:
    second.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    second.execute("SELECT count(*) FROM outbox.message")
    session.roll_back_half(half, remark="first")
    waiting = blocked(pool, observer, second, lambda: second.commit_half(half))
    session.commit()
    if isolation == "read committed":
        with pytest.raises(DecidedOtherwiseError, match=r"decided ROLLED_BACK .*: first"):
            waiting.result(WAIT)
    else:
        with pytest.raises(psycopg.errors.SerializationFailure):
            waiting.result(WAIT)
    second.rollback()
    assert observer.execute("SELECT state FROM outbox.message") == [("ROLLED_BACK",)]


@pytest.mark.parametrize("first", ["commit_half", "roll_back_half"])
def test_decider_that_waited_wins_when_the_first_did_not_happen(
    session: Session,
    second: Session,
    observer: Session,
    half: HalfMessage,
    pool: ThreadPoolExecutor,
    *,
    first: str,
) -> None:
    getattr(session, first)(half)
    waiting = blocked(pool, observer, second, lambda: second.roll_back_half(half, remark="second"))
    session.rollback()
    assert not waiting.result(WAIT).repeated
    second.commit()
    assert observer.execute("SELECT state, remark FROM outbox.message") == [("ROLLED_BACK", "second")]


def test_same_verdict_of_two_is_fine_for_both(
    session: Session, second: Session, observer: Session, half: HalfMessage, pool: ThreadPoolExecutor
) -> None:
    session.commit_half(half, remark="first")
    waiting = blocked(pool, observer, second, lambda: second.commit_half(half, remark="second"))
    session.commit()
    decision = waiting.result(WAIT)
    assert (decision.repeated, decision.reason) == (True, "first")


def test_decision_waits_for_no_half_message_that_is_not_there_yet(session: Session, second: Session) -> None:
    half = session.prepare(PAYMENT)
    with pytest.raises(UnknownMessageError, match="has not committed yet"):
        second.commit_half(half)
    session.commit()
    assert second.commit_half(half).state == "COMMITTED"


def test_old_snapshot_does_not_see_a_newer_half_message(session: Session, second: Session) -> None:
    second.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    second.execute("SELECT count(*) FROM outbox.message")
    half = session.prepare(PAYMENT)
    session.commit()
    with pytest.raises(UnknownMessageError, match="this one's snapshot is older"):
        second.commit_half(half)


# Joined ----------------------------------------------------------------------------------------------------


@pytest.mark.feature("S-42")
def test_joined_half_message_is_passed_over_by_checkers(
    session: Session, observer: Session, half: HalfMessage
) -> None:
    assert observer.execute(ASK) == [(half.id,)]
    session.join(half)
    session.join(half)
    assert observer.execute(ASK) == []
    session.commit_half(half)
    session.commit()
    assert observer.execute("SELECT state FROM outbox.message") == [("COMMITTED",)]


def test_half_message_is_free_again_when_its_transaction_ends(
    session: Session, observer: Session, half: HalfMessage
) -> None:
    session.join(half)
    session.rollback()
    assert observer.execute(ASK) == [(half.id,)]


@pytest.mark.parametrize("verdict", ["commit_half", "roll_back_half"])
def test_decided_half_message_cannot_be_joined(session: Session, half: HalfMessage, verdict: str) -> None:
    decision = getattr(session, verdict)(half, remark="why")
    session.commit()
    with pytest.raises(
        DecidedOtherwiseError, match=f"was decided {decision.state} by .*: why. There is no local"
    ):
        session.join(half)


def test_decision_waits_for_a_running_local_transaction(
    session: Session, second: Session, observer: Session, half: HalfMessage, pool: ThreadPoolExecutor
) -> None:
    session.join(half)
    waiting = blocked(pool, observer, second, lambda: second.roll_back_half(half))
    session.commit_half(half)
    session.commit()
    with pytest.raises(DecidedOtherwiseError, match="was decided COMMITTED"):
        waiting.result(WAIT)


# In order --------------------------------------------------------------------------------------------------


@pytest.mark.feature("S-33")
def test_ordered_commit_takes_its_place_after_the_lock_of_its_key(
    session: Session, second: Session, observer: Session, pool: ThreadPoolExecutor
) -> None:
    half = session.prepare(Message("payments", key="x", order_key="p-7"))
    session.commit()
    ahead = session.send(PAYMENT, ordered=True)
    waiting = blocked(pool, observer, second, lambda: second.commit_half(half, ordered=True))
    also_ahead = session.send(PAYMENT, ordered=True)
    session.commit()
    assert waiting.result(WAIT).state == "COMMITTED"
    second.commit()
    found = observer.execute("SELECT id FROM outbox.message ORDER BY position")
    assert found == [(ahead.id,), (also_ahead.id,), (half.id,)]


def test_ordered_commit_needs_something_to_order_by(session: Session) -> None:
    half = session.prepare(Message("payments"))
    with pytest.raises(InvalidMessageError, match="order_key: missing, ordered=True has nothing to order by"):
        session.commit_half(half, ordered=True)
    assert session.execute("SELECT state FROM outbox.message") == [("UNKNOWN",)]
    with pytest.raises(UnknownMessageError):
        session.commit_half(half._replace(id=half.id + 1), ordered=True)
