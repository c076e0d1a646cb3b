"""An idempotency key: the same send twice is one message, whatever becomes of the first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from outbox import Message
from outbox.errors import ConfigurationError, IdempotencyConflictError
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import WAIT, Session, count, is_blocked, wait_until

MESSAGE = Message("orders", key="o-1", body="paid")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@pytest.fixture
def second(make_session: MakeSession) -> Session:
    """Another session of the same producer group."""
    return make_session(producer_group="orders")


@pytest.mark.feature("S-22")
def test_same_send_again_answers_with_the_first_receipt(session: Session, second: Session) -> None:
    first = session.send(MESSAGE, idempotency_key="request-1")
    session.commit()
    again = second.send(MESSAGE, idempotency_key="request-1")
    assert not first.duplicate
    assert again == first._replace(duplicate=True)
    assert count(second) == 1


@pytest.mark.feature("S-22")
def test_same_send_twice_in_one_transaction_is_one_message(session: Session) -> None:
    first = session.send(MESSAGE, idempotency_key="request-1")
    assert session.send(MESSAGE, idempotency_key="request-1") == first._replace(duplicate=True)
    assert count(session) == 1


@pytest.mark.feature("S-22")
def test_a_send_with_a_key_states_its_lane_like_any_other(session: Session, observer: Session) -> None:
    observer.execute(
        "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'no lane is stated'; END$$"
    )
    observer.execute(
        "CREATE TRIGGER aaa BEFORE INSERT ON outbox.message FOR EACH ROW WHEN (NEW.lane IS NULL) "
        "EXECUTE FUNCTION public.refuse()"
    )
    observer.commit()
    session.send(MESSAGE, idempotency_key="request-1")
    session.prepare(MESSAGE, idempotency_key="request-2")
    lanes = (
        "SELECT count(*) FROM outbox.message "
        "WHERE lane <> outbox.lane_of(topic, queue, coalesce(order_key, key), id)"
    )
    assert session.execute(lanes) == [(0,)]


@pytest.mark.feature("S-22")
@pytest.mark.parametrize("first_commits", [True, False])
def test_concurrent_send_waits_for_the_first_to_end(
    session: Session, second: Session, observer: Session, pool: ThreadPoolExecutor, *, first_commits: bool
) -> None:
    first = session.send(MESSAGE, idempotency_key="request-1")
    future = pool.submit(lambda: second.send(MESSAGE, idempotency_key="request-1"))
    wait_until(lambda: future.done() or is_blocked(observer, second.pid), "blocked by the first sender")
    assert not future.done()
    if first_commits:
        session.commit()
    else:
        session.rollback()
    receipt = future.result(WAIT)
    second.commit()
    assert receipt.duplicate is first_commits
    assert (receipt.message_id == first.message_id) is first_commits
    assert count(observer) == 1


def test_send_whose_savepoint_was_rolled_back_did_not_happen(session: Session) -> None:
    session.execute("SAVEPOINT before")
    session.send(MESSAGE, idempotency_key="request-1")
    session.execute("ROLLBACK TO before")
    assert not session.send(MESSAGE, idempotency_key="request-1").duplicate
    assert count(session) == 1


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_ends_in_a_serialization_failure_never_in_two_messages(
    session: Session, second: Session, observer: Session, level: str
) -> None:
    session.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    session.execute("SELECT 1 FROM outbox.topic")
    second.send(MESSAGE, idempotency_key="request-1")
    second.commit()
    with pytest.raises(psycopg.errors.SerializationFailure):
        session.send(MESSAGE, idempotency_key="request-1")
    session.rollback()
    assert session.send(MESSAGE, idempotency_key="request-1").duplicate
    session.commit()
    assert count(observer) == 1


def test_writer_that_ignores_the_lock_cannot_make_a_second_message(
    session: Session, second: Session, observer: Session, pool: ThreadPoolExecutor
) -> None:
    second.execute(
        """INSERT INTO outbox.idempotency (producer_group, key, digest, id, message_id)
           VALUES ('orders', 'request-1', '', 1, gen_random_uuid())"""
    )
    future = pool.submit(lambda: session.send(MESSAGE, idempotency_key="request-1"))
    wait_until(lambda: future.done() or is_blocked(observer, session.pid), "blocked by the other writer")
    assert not future.done()
    second.commit()
    with pytest.raises(psycopg.errors.UniqueViolation):
        future.result(WAIT)
    session.commit()
    assert count(observer) == 0


CHANGES: list[dict[str, Any]] = [
    {"topic": "returns"},
    {"key": "o-2"},
    {"body": "sent"},
    {"body": None},
    {"headers": {"a": "b"}},
    {"order_key": "o-1"},
    {"selector": "random"},
    {"queue": 0},
    {"tags": ["paid"]},
    {"index_keys": ["paid"]},
    {"biz_id": "p-1"},
]


@pytest.mark.parametrize(
    "change", CHANGES, ids=[f"{field}={value}" for c in CHANGES for field, value in c.items()]
)
def test_other_content_under_the_same_key_is_refused_by_both(
    session: Session, change: dict[str, Any]
) -> None:
    first = session.send(MESSAGE, idempotency_key="request-1")
    other = dataclasses.replace(MESSAGE, **change)
    with pytest.raises(IdempotencyConflictError) as caught:
        session.send(other, idempotency_key="request-1")
    for named in ("'request-1'", "'orders'", str(first.message_id), "Allowed: the same content again"):
        assert named in str(caught.value)
    assert count(session) == 1


def test_what_a_retry_makes_anew_is_no_other_content(session: Session) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333{}-01"
    for n in range(2):
        new: dict[str, Any] = {"traceparent": trace.format(n), "transaction_id": f"tx-{n}"}
        message = dataclasses.replace(MESSAGE, deliver_at=datetime(2030, 1, n + 1, tzinfo=UTC), **new)
        assert session.send(message, idempotency_key="request-1").duplicate is (n == 1)


def test_headers_in_another_order_are_the_same_content(session: Session) -> None:
    session.send(dataclasses.replace(MESSAGE, headers={"a": "1", "b": "2"}), idempotency_key="request-1")
    again = dataclasses.replace(MESSAGE, headers={"b": b"2", "a": b"1"})
    assert session.send(again, idempotency_key="request-1").duplicate


def test_keys_of_other_producer_groups_are_other_keys(session: Session, make_session: MakeSession) -> None:
    session.send(MESSAGE, idempotency_key="request-1")
    session.commit()
    assert not make_session(producer_group="returns").send(MESSAGE, idempotency_key="request-1").duplicate


@pytest.mark.parametrize("key", ["", "x" * 256, "a\0b", 7])
def test_key_that_is_none_is_refused(session: Session, key: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=r"idempotency_key: .*; allowed: text of 1 to 255 characters"
    ):
        session.send(MESSAGE, idempotency_key=key)


def test_longest_key_counts_characters(session: Session) -> None:
    assert not session.send(MESSAGE, idempotency_key="订" * 255).duplicate


def test_key_needs_a_producer_group(make_session: MakeSession) -> None:
    with pytest.raises(
        ConfigurationError, match=r"keys belong to a producer group; use Outbox\(producer_group"
    ):
        make_session().send(MESSAGE, idempotency_key="request-1")


def test_key_and_message_id_together_are_refused(session: Session) -> None:
    with pytest.raises(ConfigurationError, match="not together with"):
        session.send(Message("orders", message_id=uuid4()), idempotency_key="request-1")
