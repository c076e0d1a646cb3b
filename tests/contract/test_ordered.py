"""`ordered=True`: of two transactions that send for one order key, the second waits until the first has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from outbox import Message, Receipt
from outbox.errors import InvalidMessageError, TooManyOrderedKeysError
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import WAIT, Session, is_blocked, wait_until

ORDER = Message("orders", key="o-1")
Send = Callable[[Session], Receipt]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def pair(make_session: MakeSession) -> tuple[Session, Session]:
    """Two sessions that have looked their topics up."""
    first, second = make_session(producer_group="orders"), make_session(producer_group="orders")
    for session in (first, second):
        session.send_many([ORDER, Message("returns")])
        session.rollback()
    return first, second


def blocked(
    pool: ThreadPoolExecutor, observer: Session, session: Session, work: Callable[[], Any]
) -> Future[Any]:
    """Start the work in a thread and return when the session waits for another one's lock."""
    future = pool.submit(work)
    wait_until(lambda: future.done() or is_blocked(observer, session.pid), "blocked by the first transaction")
    assert not future.done()
    return future


WAYS: dict[str, Send] = {
    "send": lambda session: session.send(ORDER, ordered=True),
    "send with message_id": lambda session: session.send(
        Message("orders", key="o-1", message_id=uuid4()), ordered=True
    ),
    "send with idempotency_key": lambda session: session.send(
        ORDER, ordered=True, idempotency_key=str(uuid4())
    ),
    "send_many": lambda session: session.send_many([Message("orders", key="o-0"), ORDER], ordered=True)[1],
    "by order key": lambda session: session.send(Message("orders", key="x", order_key="o-1"), ordered=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_position_is_taken_after_the_first_transaction_committed(
    pair: tuple[Session, Session], observer: Session, pool: ThreadPoolExecutor, way: str
) -> None:
    first, second = pair
    earlier = first.send(ORDER, ordered=True)
    future = blocked(pool, observer, second, lambda: WAYS[way](second))
    # Taken by somebody else while the second waits: had the second its position already, it would be lower.
    between = observer.execute("SELECT nextval('outbox.position')")[0][0]
    first.commit()
    later = future.result(WAIT)
    second.commit()
    assert earlier.id < between < later.id


def test_without_the_lock_the_first_commit_may_have_the_higher_position(
    pair: tuple[Session, Session],
) -> None:
    first, second = pair
    slow = first.send(ORDER)
    fast = second.send(ORDER)
    second.commit()
    first.commit()
    assert slow.id < fast.id


def test_rollback_lets_the_second_go_on(
    pair: tuple[Session, Session], observer: Session, pool: ThreadPoolExecutor
) -> None:
    first, second = pair
    first.send(ORDER, ordered=True)
    future = blocked(pool, observer, second, lambda: second.send(ORDER, ordered=True))
    first.rollback()
    assert future.result(WAIT).id > 0


def test_savepoint_that_is_rolled_back_lets_the_second_go_on(
    pair: tuple[Session, Session], observer: Session, pool: ThreadPoolExecutor
) -> None:
    first, second = pair
    first.execute("SAVEPOINT before")
    first.send(ORDER, ordered=True)
    future = blocked(pool, observer, second, lambda: second.send(ORDER, ordered=True))
    first.execute("ROLLBACK TO before")
    assert future.result(WAIT).id > 0


@pytest.mark.parametrize("other", [Message("orders", key="o-2"), Message("returns", key="o-1")])
def test_other_keys_and_other_topics_do_not_wait(pair: tuple[Session, Session], other: Message) -> None:
    first, second = pair
    first.send(ORDER, ordered=True)
    second.execute("SET lock_timeout = '2s'")
    second.send(other, ordered=True)


def test_lists_with_the_same_keys_in_opposite_order_do_not_deadlock(
    pair: tuple[Session, Session], pool: ThreadPoolExecutor
) -> None:
    keys = [f"o-{n}" for n in range(200)]

    def send(session: Session, keys: list[str]) -> None:
        for _ in range(10):
            session.send_many([Message("orders", key=key) for key in keys], ordered=True)
            session.commit()

    first, second = pair
    futures = [pool.submit(send, first, keys), pool.submit(send, second, keys[::-1])]
    assert [future.result(WAIT) for future in futures] == [None, None]


@pytest.mark.parametrize("call", ["send", "send_many"])
def test_ordered_needs_something_to_order_by(session: Session, call: str) -> None:
    keyless = Message("orders")
    with pytest.raises(InvalidMessageError, match="order_key: missing, ordered=True has nothing to order by"):
        session.send(keyless, ordered=True) if call == "send" else session.send_many([keyless], ordered=True)


def many(count: int, first: int = 0) -> list[Message]:
    """So many messages of different keys."""
    return [Message("orders", key=f"o-{number}") for number in range(first, first + count)]


def stored(session: Session) -> int:
    return int(session.execute("SELECT count(*) FROM outbox.message")[0][0])


def test_more_keys_than_a_transaction_may_lock_are_refused_and_it_stays_usable(session: Session) -> None:
    with pytest.raises(TooManyOrderedKeysError, match=r"more than 1,000 different order keys.*FOR UPDATE"):
        session.send_many(many(1_001), ordered=True)
    assert stored(session) == 0
    session.send_many(many(1_001))
    session.send_many(many(1_000), ordered=True)
    assert stored(session) == 2_001


@pytest.mark.parametrize("way", WAYS)
def test_keys_are_counted_over_all_calls_of_a_transaction(session: Session, way: str) -> None:
    session.send_many(many(600, first=10), ordered=True)
    session.send_many(many(400, first=1_010), ordered=True)
    with pytest.raises(TooManyOrderedKeysError):
        WAYS[way](session)
    assert stored(session) == 1_000
    session.commit()
    WAYS[way](session)


def test_a_key_that_is_locked_already_is_not_counted_again(session: Session) -> None:
    for _ in range(3):
        session.send_many(many(999), ordered=True)
        for _ in range(3):
            session.send(Message("orders", key="o-2000"), ordered=True)
    with pytest.raises(TooManyOrderedKeysError):
        session.send_many(many(1, first=3_000), ordered=True)


def test_locks_of_a_savepoint_that_is_rolled_back_are_not_counted(session: Session) -> None:
    session.send(ORDER, ordered=True)
    session.execute("SAVEPOINT before")
    session.send_many(many(900, first=100), ordered=True)
    session.execute("ROLLBACK TO before")
    session.send_many(many(900, first=2_000), ordered=True)
