"""Sending one message: it belongs to the caller's transaction, and every attribute arrives in its column."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from psycopg.types.json import Jsonb

from outbox import Message, Receipt
from outbox.errors import InvalidMessageError, MessageTooLargeError
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session, count

COLUMNS = """
    SELECT topic, key, body, headers, order_key, selector, queue, tags, index_keys, state, producer_group,
           transaction_id, checker, biz_type, biz_id, deliver_at, deliver_before, traceparent
    FROM outbox.message WHERE id = %s
"""


@pytest.mark.feature("S-10")
def test_message_is_there_when_the_transaction_commits_and_not_before(
    session: Session, observer: Session
) -> None:
    receipt = session.send(Message("orders", key="o-1"))
    assert count(observer) == 0
    session.commit()
    assert observer.execute("SELECT id, message_id, topic FROM outbox.message") == [receipt[:3]]


def test_message_of_a_rolled_back_transaction_never_existed(session: Session, observer: Session) -> None:
    session.send(Message("orders", key="o-1"))
    session.rollback()
    assert count(observer) == 0


def test_send_joins_a_transaction_block_and_leaves_it_open(
    make_session: MakeSession, observer: Session
) -> None:
    session = make_session(connect={"autocommit": True})

    def work() -> None:
        session.execute("CREATE TABLE orders (id int)")
        session.send(Message("orders"))
        assert count(observer) == 0

    session.in_transaction(work)
    assert count(observer) == 1


def test_message_in_a_savepoint_that_is_rolled_back_is_gone(session: Session, observer: Session) -> None:
    kept = session.send(Message("orders", body="before"))

    def fail() -> None:
        session.send(Message("orders", body="inside"))
        raise LookupError

    with pytest.raises(LookupError):
        session.in_transaction(fail)
    after = session.send(Message("orders", body="after"))
    session.commit()
    assert observer.execute("SELECT id FROM outbox.message ORDER BY id") == [(kept.id,), (after.id,)]


@pytest.mark.feature("S-64")
def test_every_attribute_is_in_its_column(session: Session) -> None:
    due, id = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), uuid4()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    message = Message(
        "orders:创建订单",
        key=b"\0\xff",
        body=b"\0binary\xff",
        headers={"名": '"quoted" \\ 值', "empty": "", "none": None},
        order_key=10086,
        selector="modulo",
        index_keys=["k{1}", 'k"2,', "NULL", "\\3"],
        deliver_at=due,
        deliver_before=due + timedelta(hours=1),
        transaction_id="tx-1",
        checker="payment",
        biz_type="payment",
        biz_id="p-7",
        message_id=id,
        traceparent=trace,
    )
    receipt = session.send(message)
    assert receipt == Receipt(receipt.id, id, "orders", None, duplicate=False)
    headers = {"名": '"quoted" \\ 值', "empty": "", "none": None}
    keys = ["k{1}", 'k"2,', "NULL", "\\3"]
    assert session.execute(COLUMNS, [receipt.id]) == [
        (
            *("orders", b"\0\xff", b"\0binary\xff", headers, b"10086", "modulo", None, ["创建订单"], keys),
            *(
                "COMMITTED",
                "orders",
                "tx-1",
                "payment",
                "payment",
                "p-7",
                due,
                due + timedelta(hours=1),
                trace,
            ),
        )
    ]


def test_what_is_left_out_is_null_or_empty(make_session: MakeSession) -> None:
    session = make_session()
    receipt = session.send(Message("orders", body=None))
    nothing = [None] * 6
    row: tuple[object, ...] = ("orders", *nothing, [], [], "COMMITTED", None, *nothing, None)
    assert session.execute(COLUMNS, [receipt.id]) == [row]


def test_explicit_queue_is_stored_and_in_the_receipt(session: Session) -> None:
    receipt = session.send(Message("orders", key="o-1", queue=3))
    assert receipt.queue == 3
    assert session.execute("SELECT queue FROM outbox.message WHERE id = %s", [receipt.id]) == [(3,)]


def test_message_id_made_by_the_outbox_carries_the_row_id(session: Session) -> None:
    receipt = session.send(Message("orders"))
    assert isinstance(receipt.message_id, UUID)
    assert receipt.message_id.int >> 80 == receipt.id


def test_refused_message_leaves_the_transaction_usable(session: Session, observer: Session) -> None:
    session.execute("CREATE TABLE orders AS SELECT 1 AS id")
    with pytest.raises(MessageTooLargeError):
        session.send(Message("orders", body=b"x" * 1_048_588))
    with pytest.raises(InvalidMessageError, match=r"message: is dict; allowed: outbox\.Message"):
        session.send({"topic": "orders"})  # type: ignore[arg-type]  # that it is refused is the point
    session.send(Message("orders"))
    session.commit()
    assert count(observer) == 1


def test_a_json_wrapper_of_psycopg_is_no_body() -> None:
    with pytest.raises(InvalidMessageError, match="body: is Jsonb"):
        Message("orders", body=Jsonb({}))  # type: ignore[arg-type]  # that it is refused is the point
