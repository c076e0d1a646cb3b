"""Sending many messages: the order of the list, receipts one by one, all or nothing."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from outbox import Message
from outbox.errors import InvalidMessageError, MessageTooLargeError, SelectorError
from outbox.operations.send import CHUNK_MESSAGES
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session, count


def test_positions_and_receipts_are_in_the_order_of_the_list(session: Session) -> None:
    bodies = [f"{n * 7919 % 2503}".encode() for n in range(2 * CHUNK_MESSAGES + 500)]
    receipts = session.send_many(Message("orders", key="k", body=body) for body in bodies)
    assert [receipt.id for receipt in receipts] == sorted(receipt.id for receipt in receipts)
    found = session.execute("SELECT id, message_id, body FROM outbox.message ORDER BY position")
    assert found == [
        (receipt.id, receipt.message_id, body) for receipt, body in zip(receipts, bodies, strict=True)
    ]


def test_chunks_are_cut_by_size_too(session: Session) -> None:
    body = b"x" * 1_000_000
    receipts = session.send_many([Message("orders", body=body) for _ in range(9)])
    assert session.execute("SELECT id FROM outbox.message ORDER BY id") == [
        (receipt.id,) for receipt in receipts
    ]


def test_messages_with_and_without_ids_of_their_own_keep_their_order(session: Session) -> None:
    own: list[UUID | None] = [None, uuid4(), uuid4(), None, uuid4()]
    receipts = session.send_many([Message("orders", message_id=id) for id in own])
    assert [receipt.id for receipt in receipts] == sorted(receipt.id for receipt in receipts)
    assert [id is None or id == receipt.message_id for id, receipt in zip(own, receipts, strict=True)] == [
        True
    ] * 5
    for receipt in receipts:
        assert session.execute("SELECT message_id FROM outbox.message WHERE id = %s", [receipt.id]) == [
            (receipt.message_id,)
        ]


@pytest.mark.feature("S-67")
def test_every_message_keeps_its_own_attributes(session: Session) -> None:
    messages = [
        Message(
            "orders:a||创建订单||c",
            key=b"\0\xff",
            body=b"\0",
            headers={"名": "值"},
            index_keys=["k", "NULL", "{"],
        ),
        Message("other", body=None, order_key="o", biz_id="b"),
        Message("orders", queue=2, transaction_id="t", checker="c", biz_type="y"),
    ]
    session.send_many(messages)
    found = session.execute(
        """SELECT topic, key, body, headers, order_key, queue, tags, index_keys, transaction_id, checker, biz_type,
                  biz_id, producer_group, state
           FROM outbox.message ORDER BY id"""
    )
    end = ("orders", "COMMITTED")
    none = (None, None, None, None)
    assert found == [
        (
            "orders",
            b"\0\xff",
            b"\0",
            {"名": "值"},
            None,
            None,
            ["a", "创建订单", "c"],
            ["k", "NULL", "{"],
            *none,
            *end,
        ),
        ("other", None, None, None, b"o", None, [], [], None, None, None, "b", *end),
        ("orders", None, b"", None, None, 2, [], [], "t", "c", "y", None, *end),
    ]


def test_one_row_of_a_list_equals_one_sent_alone(session: Session) -> None:
    message = Message("orders:t", key="k", body="b", headers={"a": "b"}, order_key=5, selector="modulo")
    ids = [session.send(message).id, session.send_many([message])[0].id]
    rows = session.execute(
        "SELECT to_jsonb(m) - '{id,position,message_id,born_at}'::text[] FROM outbox.message m WHERE id = ANY (%s)",
        [ids],
    )
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    "bad",
    [Message("orders", body=b"x" * 1_048_588), Message("orders", selector="no_such", key="k"), "orders"],
)
def test_one_bad_message_keeps_the_whole_list_out(session: Session, bad: Message) -> None:
    with pytest.raises(InvalidMessageError):
        session.send_many([*(Message("orders") for _ in range(CHUNK_MESSAGES + 1)), bad])
    session.commit()
    assert session.execute("SELECT count(*) FROM outbox.message") == [(0,)]


def test_custom_selector_that_fails_keeps_the_whole_list_out(make_session: MakeSession) -> None:
    session = make_session(selectors={"third_fails": lambda queues, message, arg: 9 if arg == "3" else 0})
    session.register_topic("orders", 4)
    with pytest.raises(SelectorError, match="'third_fails' returned 9"):
        session.send_many([Message("orders", key=str(n), selector="third_fails") for n in range(1, 5)])
    assert session.execute("SELECT count(*) FROM outbox.message") == [(0,)]


def test_no_messages_are_no_receipts(session: Session) -> None:
    assert session.send_many([]) == []
    assert session.send_many([], ordered=True) == []


def test_prepared_statements_stay_few_whatever_the_lists_hold(session: Session) -> None:
    for n in range(1, 8):
        session.send_many(
            [Message("orders", key="k" if n % 2 else None, tags=["t"] * (n % 3)) for _ in range(n)]
        )
    prepared = session.execute("SELECT statement FROM pg_prepared_statements WHERE statement ~ 'INSERT'")
    assert len(prepared) == 1


def test_an_error_names_the_place_of_its_message_in_the_list(session: Session) -> None:
    good = Message("orders", key="k")
    with pytest.raises(MessageTooLargeError, match=r"messages\[2\]: message: .* allowed: "):
        session.send_many([good, good, Message("orders", body=b"x" * 2_000_000)])
    with pytest.raises(InvalidMessageError, match=r"messages\[1\]: is str; allowed: outbox.Message"):
        session.send_many([good, "orders"])  # type: ignore[list-item]
    assert count(session) == 0


def test_one_message_instead_of_a_list_is_refused_with_the_repair(session: Session) -> None:
    with pytest.raises(InvalidMessageError, match=r"messages: is Message; .* send\(conn, message\)"):
        session.send_many(Message("orders"))  # type: ignore[arg-type]
