"""`prepare`: a half message is stored with the caller's transaction, undecided, and nothing wrong is ever written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from outbox import HalfMessage, Message
from outbox.errors import (
    ConfigurationError,
    IdempotencyConflictError,
    InvalidMessageError,
    MessageTooLargeError,
    NoTransactionError,
    OutboxError,
    WrongMessageTypeError,
)
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session, count

PAYMENT = Message("payments", key="p-7", body="charged", tags=["paid"])
LATER = datetime(2090, 1, 1, tzinfo=UTC)


@pytest.mark.feature("S-15")
def test_half_message_is_durable_and_undecided_once_its_transaction_commits(
    session: Session, observer: Session
) -> None:
    half = session.prepare(PAYMENT)
    assert count(observer) == 0
    session.commit()
    found = observer.execute(
        "SELECT id, message_id, topic, key, body, tags, state, producer_group, decided_at FROM outbox.message"
    )
    row = (half.id, half.message_id, "payments", b"p-7", b"charged", ["paid"], "UNKNOWN", "orders", None)
    assert found == [row]
    assert half == HalfMessage(half.id, half.message_id, "payments")


@pytest.mark.feature("S-34")
def test_a_half_message_keeps_its_topic_and_its_one_row_until_it_is_decided(session: Session) -> None:
    half = session.prepare(PAYMENT)
    session.commit()
    born = session.execute("SELECT id, message_id, topic, tags, key, body FROM outbox.message")
    session.commit_half(half)
    session.commit()
    assert session.execute("SELECT id, message_id, topic, tags, key, body FROM outbox.message") == born
    assert born[0][:4] == (half.id, half.message_id, "payments", ["paid"])


def test_half_message_of_a_rolled_back_transaction_never_was(session: Session) -> None:
    session.prepare(PAYMENT)
    session.rollback()
    assert count(session) == 0
    assert session.execute("SELECT count(*) FROM outbox.event") == [(0,)]


@pytest.mark.feature("S-64")
def test_what_a_half_message_is_about_comes_from_the_fields_of_the_message(session: Session) -> None:
    message = Message(
        "payments", checker="mine", biz_type="refund", biz_id="1", transaction_id="t-1", body="x"
    )
    kept = session.prepare(message)
    other = replace(message, checker="payment", biz_type="pay", biz_id="p-7", transaction_id="t-2")
    assert (kept.transaction_id, session.prepare(other).transaction_id) == ("t-1", "t-2")
    found = session.execute(
        "SELECT checker, biz_type, biz_id, transaction_id FROM outbox.message ORDER BY id"
    )
    assert found == [("mine", "refund", "1", "t-1"), ("payment", "pay", "p-7", "t-2")]


@pytest.mark.parametrize(
    ("given", "seconds"), [(None, None), (0, 0), (90, 90), (1.5, 1.5), (timedelta(minutes=2), 120)]
)
def test_own_first_delay_is_stored(session: Session, given: Any, seconds: float | None) -> None:
    session.prepare(PAYMENT, check_after=given)
    found = session.execute("SELECT extract(epoch FROM check_after)::float8 FROM outbox.message")
    assert found == [(seconds,)]


def test_birth_is_noted_with_the_actor(session: Session) -> None:
    session.execute("SELECT set_config('outbox.actor', 'till 4', true)")
    half = session.prepare(PAYMENT)
    user = session.execute("SELECT session_user::text")[0][0]
    found = session.execute("SELECT id, message_id, kind, from_state, to_state, actor FROM outbox.event")
    assert found == [(half.id, half.message_id, "transition", None, "UNKNOWN", f"till 4 ({user})")]


def test_time_of_birth_is_the_databases(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 0.0)
    before = session.execute("SELECT clock_timestamp()")[0][0]
    session.prepare(PAYMENT)
    found = session.execute(
        "SELECT born_at >= %s AND born_at <= clock_timestamp() FROM outbox.message", [before]
    )
    assert found == [(True,)]


def test_half_message_may_bring_its_own_id(session: Session) -> None:
    own = uuid4()
    half = session.prepare(Message("payments", message_id=own), check_after=4)
    assert half.message_id == own
    assert session.execute("SELECT message_id, state FROM outbox.message") == [(own, "UNKNOWN")]


def test_delayed_half_message_waits_only_from_its_commit_on(session: Session) -> None:
    half = session.prepare(Message("payments", deliver_at=LATER))
    assert session.execute("SELECT count(*) FROM outbox.waiting") == [(0,)]
    session.commit_half(half)
    assert session.execute("SELECT id, reason, due_at FROM outbox.waiting") == [(half.id, "delayed", LATER)]


def test_custom_selector_places_a_half_message(make_session: MakeSession) -> None:
    session = make_session(
        producer_group="orders", selectors={"last": lambda queues, message, arg: queues - 1}
    )
    session.register_topic("payments", 4)
    half = session.prepare(Message("payments", key="k", selector="last"))
    assert half.queue == 3
    assert session.execute("SELECT queue, selector FROM outbox.message") == [(3, "last")]


def test_selector_of_the_call_places_a_half_message(make_session: MakeSession) -> None:
    session = make_session(producer_group="orders")
    session.register_topic("payments", 4)
    half = session.prepare(
        Message("payments", key="k", order_key=6), selector=lambda queues, message, arg: arg % queues
    )
    assert half.queue == 2
    assert session.execute("SELECT queue, selector FROM outbox.message") == [(2, "<lambda>")]


# Sent again ------------------------------------------------------------------------------------------------


@pytest.mark.feature("S-22")
def test_same_key_again_answers_with_the_one_half_message(
    make_session: MakeSession, session: Session
) -> None:
    first = session.prepare(PAYMENT, idempotency_key="request-1", check_after=5)
    session.commit()
    other = make_session(producer_group="orders")
    again = other.prepare(PAYMENT, idempotency_key="request-1", check_after=9)
    assert again == first._replace(duplicate=True)
    other.commit_half(first)
    assert other.prepare(PAYMENT, idempotency_key="request-1").duplicate
    assert other.execute("SELECT state, check_after FROM outbox.message") == [
        ("COMMITTED", timedelta(seconds=5))
    ]


@pytest.mark.feature("S-22")
def test_key_of_a_half_message_does_not_stand_for_a_sent_one(session: Session) -> None:
    session.prepare(PAYMENT, idempotency_key="half")
    session.send(PAYMENT, idempotency_key="sent")
    with pytest.raises(IdempotencyConflictError):
        session.send(PAYMENT, idempotency_key="half")
    with pytest.raises(IdempotencyConflictError):
        session.prepare(PAYMENT, idempotency_key="sent")
    with pytest.raises(IdempotencyConflictError):
        session.prepare(replace(PAYMENT, biz_id="another"), idempotency_key="half")
    assert count(session) == 2


# Refused ---------------------------------------------------------------------------------------------------


@pytest.mark.feature("S-23")
@pytest.mark.parametrize(
    ("message", "options", "error", "text"),
    [
        ("p", {}, InvalidMessageError, "message: is str; allowed: outbox.Message"),
        (
            PAYMENT,
            {"ordered": True},
            ConfigurationError,
            r"ordered: .* allowed: commit\(conn, half, ordered=True\)",
        ),
        (
            PAYMENT,
            {"check_after": -1},
            ConfigurationError,
            "check_after: -1; allowed: seconds or a timedelta, 0 s",
        ),
        (PAYMENT, {"check_after": "6 s"}, ConfigurationError, "check_after: '6 s'; allowed: seconds"),
        (PAYMENT, {"check_after": True}, ConfigurationError, "check_after: True; allowed: seconds"),
        (PAYMENT, {"check_after": float("inf")}, ConfigurationError, "check_after: inf; allowed: seconds"),
        (PAYMENT, {"check_after": float("nan")}, ConfigurationError, "check_after: nan; allowed: seconds"),
        (PAYMENT, {"check_after": timedelta(days=4000)}, ConfigurationError, "to 3650 days"),
        (PAYMENT, {"idempotency_key": ""}, ConfigurationError, "idempotency_key: ''"),
        (
            Message("payments", body=b"x" * 1_100_000),
            {},
            MessageTooLargeError,
            "too many for topic 'payments'",
        ),
    ],
)
def test_bad_half_message_is_refused_before_anything_is_written(
    session: Session, message: Any, options: dict[str, Any], error: type[OutboxError], text: str
) -> None:
    with pytest.raises(error, match=text):
        session.prepare(message, **options)
    assert count(session) == 0


def test_half_message_without_a_group_is_refused(make_session: MakeSession) -> None:
    session = make_session()
    with pytest.raises(ConfigurationError, match=r"producer_group: missing.*Use Outbox\(producer_group=…\)"):
        session.prepare(PAYMENT)
    assert count(session) == 0


@pytest.mark.feature("S-74")
@pytest.mark.parametrize("type", ["NORMAL", "FIFO", "DELAY"])
def test_topic_of_another_type_takes_no_half_messages(session: Session, type: str) -> None:
    session.register_topic("payments", 4, message_type=type)
    with pytest.raises(
        WrongMessageTypeError,
        match=f"'payments' is of type {type}, the message of type TRANSACTION; allowed: ",
    ):
        session.prepare(PAYMENT)
    assert count(session) == 0


@pytest.mark.feature("S-74", "H-05")
@pytest.mark.parametrize("type", ["TRANSACTION", "MIXED"])
def test_topic_for_half_messages_takes_them_ordered_and_delayed_too(session: Session, type: str) -> None:
    session.register_topic("payments", 4, message_type=type)
    session.prepare(Message("payments", key="p-7", order_key="o", deliver_at=LATER))
    assert count(session) == 1


@pytest.mark.feature("S-19")
def test_half_message_needs_a_transaction(make_session: MakeSession) -> None:
    session = make_session(producer_group="orders", connect={"autocommit": True})
    with pytest.raises(NoTransactionError):
        session.prepare(PAYMENT)
    session.in_transaction(lambda: session.prepare(PAYMENT))
    assert count(session) == 1
