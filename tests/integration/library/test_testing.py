"""`outbox.testing`: tests of applications see what was sent, also in a transaction that is rolled back."""

from __future__ import annotations

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.testing import SentMessages

pytestmark = pytest.mark.feature("H-31")
GROUP = Outbox(producer_group="orders")


def test_what_a_rolled_back_transaction_sent_is_seen_in_it_and_leaves_nothing(database: str) -> None:
    with psycopg.connect(database) as conn:
        GROUP.send(conn, Message("orders", key="0", body=b"before"))
        conn.commit()
        sent = SentMessages(conn)
        GROUP.send(
            conn, Message("orders", key="7", body=b'{"n": 1}', tags=["paid"], headers={"a": "1", "b": None})
        )
        half = GROUP.prepare(conn, Message("orders", key="8", body=None))
        [one] = sent.assert_sent("orders", key="7", body={"n": 1}, tags=["paid"], headers={"a": "1"})
        assert (one.key, one.body, one.state, one.producer_group) == (
            b"7",
            b'{"n": 1}',
            "COMMITTED",
            "orders",
        )
        sent.assert_sent("orders", key=b"8", body=None, state="UNKNOWN")
        assert [each.message_id for each in sent.all()][1] == half.message_id
        sent.assert_sent("orders", count=2)
        sent.refute_sent("orders", key="0")
        sent.refute_sent("payments")
        conn.rollback()
        sent.refute_sent("orders")


@pytest.mark.parametrize(
    "wanted",
    [
        {"key": "8"},
        {"body": b"x"},
        {"body": {"n": 2}},
        {"headers": {"a": "2"}},
        {"headers": {"c": None}},
        {"tags": ["paid", "late"]},
        {"state": "UNKNOWN"},
        {"count": 2},
    ],
    ids=str,
)
def test_what_does_not_fit_fails_and_lists_what_was_sent(database: str, wanted: dict[str, object]) -> None:
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        GROUP.send(conn, Message("orders", key="7", body=b'{"n": 1}', tags=["paid"], headers={"a": "1"}))
        with pytest.raises(
            AssertionError, match=r"orders key=b'7' body=b'\{\"n\": 1\}' headers=\{'a': '1'\}"
        ):
            sent.assert_sent("orders", **wanted)  # type: ignore[arg-type]


def test_the_nearest_message_is_listed_first_and_long_bodies_are_cut(database: str) -> None:
    with psycopg.connect(database) as conn:
        sent = SentMessages(conn)
        GROUP.send_many(conn, [Message("orders", key=str(n), body=b"x" * 5000) for n in range(30)])
        with pytest.raises(AssertionError) as error:
            sent.assert_sent("orders", key="25", body=b"y")
        lines = str(error.value).splitlines()
        assert "key=b'25'" in lines[2]
        assert lines[-1] == "  and 20 more"
        assert max(map(len, lines)) < 400


def test_nothing_sent_asks_whether_it_was_flushed(database: str) -> None:
    with psycopg.connect(database) as conn, pytest.raises(AssertionError, match="was the session flushed"):
        SentMessages(conn).assert_sent("orders")


def test_another_connection_sees_what_is_committed(database: str) -> None:
    with psycopg.connect(database) as conn, psycopg.connect(database, autocommit=True) as other:
        sent = SentMessages(other)
        GROUP.send(conn, Message("orders"))
        sent.refute_sent("orders")
        conn.commit()
        sent.assert_sent("orders")
