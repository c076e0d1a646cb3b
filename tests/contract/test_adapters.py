"""What the outbox of each adapter promises: a message and its row together or not at all, in the order of the rows."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from outbox import Decision, HalfMessage, Message, MessageType, Outbox, Receipt
from outbox.errors import (
    DecidedOtherwiseError,
    IdempotencyConflictError,
    InvalidConnectionError,
    InvalidMessageError,
    NoTransactionError,
    TooLateError,
)
from tests.support.adapter_callers import ALIASES, KINDS, TABLE, Caller, make_caller
from tests.support.django_project import alias_of, databases
from tests.support.plain_inserts import Connection, connect

pytestmark = pytest.mark.feature("H-17")
MakeCaller = Callable[..., Caller]
COLUMNS = """
    SELECT topic, key, body, headers, order_key, selector, queue, tags, index_keys, state, producer_group, checker,
        biz_type, biz_id, deliver_at, deliver_before, transaction_id, traceparent, check_after,
        CASE WHEN coalesce(order_key, key) IS NOT NULL THEN lane END  -- without a key any will do
    FROM outbox.message ORDER BY position
"""


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """Another connection, in autocommit: it sees what is committed."""
    with connect(database) as conn:
        conn.execute(TABLE)
        yield conn


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, database: str, conn: Connection) -> Iterator[MakeCaller]:
    """Makes sessions of one kind, closed after the test."""
    made: list[Caller] = []

    def make(*, outside: bool = False) -> Caller:
        made.append(make_caller(database, request.param, len(made), outside=outside))
        return made[-1]

    with databases(**dict.fromkeys(ALIASES, alias_of(database))):
        yield make
        for caller in made:
            caller.close()


@pytest.fixture
def caller(make: MakeCaller) -> Caller:
    return make()


def bodies(conn: Connection) -> list[str]:
    """The messages that are committed, in the order of their places."""
    rows = conn.execute(
        "SELECT convert_from(body, 'UTF8') FROM outbox.message WHERE state = 'COMMITTED' ORDER BY position"
    )
    return [body for (body,) in rows.fetchall()]


def test_row_and_message_are_there_if_and_only_if_both_are(caller: Caller, conn: Connection) -> None:
    def state() -> object:
        return conn.execute("SELECT state FROM orders").fetchone()

    caller.pay()
    caller.send("lost")
    caller.rollback()
    assert (bodies(conn), state()) == ([], ("new",))
    caller.pay()
    caller.send("kept")
    assert (bodies(conn), state()) == ([], ("new",))
    caller.commit()
    assert (bodies(conn), state()) == (["kept"], ("paid",))


def test_the_first_statement_of_a_transaction_may_send(caller: Caller, conn: Connection) -> None:
    """A connection that has not begun on the server would commit the message by itself."""
    receipt = caller.send("lost")
    assert isinstance(receipt.message_id, uuid.UUID)
    assert bodies(conn) == []
    caller.rollback()
    assert bodies(conn) == []


def test_a_receipt_without_a_commit_stands_for_no_row(make: MakeCaller, conn: Connection) -> None:
    caller = make()
    assert caller.send().message_id is not None
    caller.close()
    assert bodies(conn) == []


def test_a_savepoint_that_is_rolled_back_takes_its_messages_along(caller: Caller, conn: Connection) -> None:
    caller.send("outside")
    caller.savepoint(lambda: caller.send("inside"))
    caller.send("after")
    caller.commit()
    assert bodies(conn) == ["outside", "after"]


def test_a_message_has_its_place_after_the_lock_of_its_row(caller: Caller, conn: Connection) -> None:
    """An ORM that writes at the commit would leave the row free for a later transaction with an earlier place."""
    caller.pay()
    caller.send("paid")
    conn.execute("SET lock_timeout = '150ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        conn.execute("UPDATE orders SET state = 'sent' WHERE id = 'o-1'")
    caller.commit()
    with conn.transaction():
        conn.execute("UPDATE orders SET state = 'sent' WHERE id = 'o-1'")
        Outbox().send(conn, Message("orders", key="o-1", body="sent"))
    assert bodies(conn) == ["paid", "sent"]


@pytest.mark.parametrize("call", ["send", "send_many", "prepare", "register_topic"])
def test_outside_a_transaction_nothing_is_written(make: MakeCaller, conn: Connection, call: str) -> None:
    caller = make(outside=True)
    given: dict[str, tuple[Any, ...]] = {
        "send": (Message("orders"),),
        "send_many": ([Message("orders")],),
        "prepare": (Message("orders", checker="c", biz_id="1"),),
        "register_topic": ("orders", 4),
    }
    with pytest.raises(NoTransactionError, match=r"conn: .*; allowed: .*transaction"):
        caller.call(call, *given[call])
    assert bodies(conn) == []
    assert conn.execute("SELECT count(*) FROM outbox.topic").fetchone() == (0,)


def test_another_kind_of_connection_is_refused_by_name(make: MakeCaller) -> None:
    caller = make()
    for given in (object(), 7):
        with pytest.raises(InvalidConnectionError, match=r"conn: is builtins\.\w+; allowed here: "):
            _send_on(caller, given)


def _send_on(caller: Caller, target: object) -> None:
    caller.wait(caller.outbox.send(target, Message("orders")))


MESSAGES = [
    Message("orders"),
    Message(
        "orders:创建订单",
        key=b"\0\xff",
        body=b"\0 %s $1 \\ ' \xff",
        headers={"名": '"quoted" \\ %s $1 值', "empty": "", "none": None},
        order_key=10086,
        selector="modulo",
        index_keys=["k{1}", 'k"2,', "NULL", "\\3", "%s$1"],
        deliver_at=datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        deliver_before=datetime(2030, 1, 2, 4, 4, 5, 678901, tzinfo=UTC),
        transaction_id="tx-1",
        checker="payment",
        biz_type="payment",
        biz_id="p-7 %s $1",
        message_id=uuid.UUID(int=7 << 64 | 4 << 76 | 2 << 62),
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ),
    Message("orders", key="o-1", body=None, queue=3),
]


def test_every_attribute_arrives_as_by_psycopg(caller: Caller, conn: Connection) -> None:
    with psycopg.connect(conn.info.dsn, password=conn.info.password) as reference:
        outbox = Outbox(producer_group="orders")
        for message in MESSAGES:
            outbox.send(reference, message)
        outbox.send_many(reference, [MESSAGES[0], MESSAGES[2]] * 2)
        outbox.prepare(reference, Message("orders", key="h"), check_after=timedelta(seconds=7.5))
        expected = reference.execute(COLUMNS).fetchall()
        reference.rollback()
    receipts = [caller.call("send", message) for message in MESSAGES]
    receipts += caller.call("send_many", [MESSAGES[0], MESSAGES[2]] * 2)
    caller.call("prepare", Message("orders", key="h"), check_after=timedelta(seconds=7.5))
    caller.commit()
    assert conn.execute(COLUMNS).fetchall() == expected
    assert all(type(each) is Receipt and type(each.id) is int for each in receipts)
    assert {type(each.message_id) for each in receipts} == {uuid.UUID}
    assert receipts[1].message_id == MESSAGES[1].message_id


def test_ordered_and_idempotent_sends_do_what_they_do_elsewhere(caller: Caller, conn: Connection) -> None:
    once = Message("orders", key="o-1", body="once")
    first = caller.call("send", once, idempotency_key="7")
    again = caller.call("send", once, idempotency_key="7")
    assert (again.id, again.message_id, again.duplicate) == (first.id, first.message_id, True)
    with pytest.raises(IdempotencyConflictError):
        caller.call("send", Message("orders", key="o-1", body="other"), idempotency_key="7")
    caller.call("send", Message("orders", key="o-1", body="ordered"), ordered=True)
    caller.call("send_many", [Message("orders", key=k, body=k) for k in "ab"], ordered=True)
    locks = """
        SELECT count(DISTINCT (l.classid, l.objid)) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()
    """
    assert conn.execute(locks).fetchone() == (4,)
    caller.commit()
    assert bodies(conn) == ["once", "ordered", "a", "b"]


def test_a_half_message_is_decided_by_another_session(make: MakeCaller, conn: Connection) -> None:
    caller, other = make(), make()
    half = caller.call("prepare", Message("orders", key="o-1", body="half", checker="c", biz_id="1"))
    assert type(half) is HalfMessage
    caller.commit()
    assert bodies(conn) == []
    other.call("join", half)
    found = other.call("commit", half, remark="paid")
    assert (type(found), found.state, found.reason, found.at.tzinfo) == (Decision, "COMMITTED", "paid", UTC)
    other.commit()
    assert bodies(conn) == ["half"]
    assert caller.call("commit", half.message_id).repeated
    with pytest.raises(DecidedOtherwiseError, match="was decided COMMITTED by"):
        caller.call("rollback", str(half.message_id))
    caller.send("the transaction is usable")
    caller.commit()
    assert len(bodies(conn)) == 2


def test_a_delayed_message_is_cancelled_until_it_is_released(caller: Caller, conn: Connection) -> None:
    soon, late = (datetime.now(UTC) + timedelta(hours=hours) for hours in (-1, 1))
    waiting = caller.call("send", Message("orders", key="k", body="w", deliver_at=late))
    released = caller.call("send", Message("orders", key="k", body="r", deliver_at=soon))
    caller.commit()
    assert caller.call("cancel", waiting).state == "CANCELLED"
    caller.commit()
    conn.execute("DELETE FROM outbox.waiting WHERE id = %s", [released.id])
    with pytest.raises(TooLateError, match="is released"):
        caller.call("cancel", released)
    caller.send("the transaction is usable")
    caller.commit()
    assert bodies(conn) == ["r", "the transaction is usable"]


def test_topics_and_groups_are_registered_in_the_transaction(caller: Caller, conn: Connection) -> None:
    topic = caller.call("register_topic", "orders", 4, message_type="FIFO", max_message_bytes=2000)
    assert (topic.partitions, topic.message_type, topic.max_message_bytes) == (4, MessageType.FIFO, 2000)
    group = caller.call("register_group", "orders", check_after=7.5, max_checks=3, policy="EXHAUSTED")
    assert (group.check_after, group.max_checks) == (timedelta(seconds=7.5), 3)
    with pytest.raises(InvalidMessageError, match="is of type FIFO"):
        caller.call("send", Message("orders"))
    caller.commit()
    assert conn.execute("SELECT name, partitions FROM outbox.topic").fetchall() == [("orders", 4)]


def test_an_error_of_the_database_is_the_librarys_own(caller: Caller, conn: Connection) -> None:
    caller.execute("SET LOCAL statement_timeout = '200ms'")
    conn.execute("BEGIN")
    conn.execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(Exception, match="statement timeout") as caught:
        caller.send()
    states = [getattr(error, "sqlstate", None) for error in (caught.value, caught.value.__cause__)]
    assert "57014" in states
    assert type(caught.value).__module__.partition(".")[0] in {"psycopg", "asyncpg", "django"}
    conn.execute("ROLLBACK")
    caller.rollback()
    caller.send("after")
    caller.commit()
    assert bodies(conn) == ["after"]


def test_a_missing_schema_is_reported_with_the_command_that_makes_it(
    caller: Caller, conn: Connection
) -> None:
    conn.execute("ALTER TABLE outbox.message RENAME COLUMN biz_id TO other")
    with pytest.raises(Exception, match="biz_id") as caught:
        caller.send()
    assert "run: outbox db upgrade" in "".join(caught.value.__notes__)
    caller.rollback()
