"""RocketMQ 4.x's model on a real PostgreSQL: what each answer and each mistake of a listener comes to."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.checking import Listeners
from outbox.records import MessageView
from outbox.rocketmq import LocalTransactionState, MessageQueue, SendStatus
from tests.support.rocketmq_scripts import MakeApp, Truth

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
MESSAGE = Message(
    "orders:created", key="o-7", body=b"seven", index_keys=["o-7"], biz_type="order", biz_id="7"
)


@pytest.mark.feature("S-13", "S-25")
@pytest.mark.parametrize("answer", [COMMIT, LocalTransactionState.COMMIT_MESSAGE, "COMMIT_MESSAGE", True])
def test_commit_publishes_message_and_rows_together(make_app: MakeApp, truth: Truth, answer: Any) -> None:
    app = make_app(answer=answer)
    result = app.send(MESSAGE, "arg")
    assert result.local_transaction_state is COMMIT
    assert result.remark is None
    assert truth.message(result.msg_id) == ("COMMITTED", None)
    assert truth.rows() == ["row"]
    assert app.producer.counts["committed_total"] == 1


@pytest.mark.feature("S-14", "S-25", "S-68")
@pytest.mark.parametrize(
    "answer", [ROLLBACK, LocalTransactionState.ROLLBACK_MESSAGE, "ROLLBACK_MESSAGE", False]
)
def test_rollback_withdraws_message_and_rows(make_app: MakeApp, truth: Truth, answer: Any) -> None:
    result = make_app(answer=answer).send(MESSAGE)
    assert result.local_transaction_state is ROLLBACK
    assert truth.message(result.msg_id) == ("ROLLED_BACK", "the listener answered ROLLBACK")
    assert truth.rows() == []


@pytest.mark.feature("S-15", "S-16")
@pytest.mark.parametrize(
    ("answer", "remark"),
    [
        (UNKNOWN, None),
        (LocalTransactionState.UNKNOW, None),
        (None, "answer is None"),
        ("perhaps", "answer is not a state: expected COMMIT, ROLLBACK or UNKNOWN, got another text"),
        (1, "answer is not a state: expected COMMIT, ROLLBACK or UNKNOWN, got an object of int"),
    ],
)
def test_unknown_commits_the_rows_and_leaves_the_message_undecided(
    make_app: MakeApp, truth: Truth, answer: Any, remark: str | None
) -> None:
    result = make_app(answer=answer).send(MESSAGE)
    assert (result.local_transaction_state, result.remark) == (UNKNOWN, remark)
    assert truth.message(result.msg_id) == ("UNKNOWN", remark)
    assert truth.rows() == ["row"]


@pytest.mark.feature("S-17")
def test_an_exception_is_unknown_with_its_remark_and_no_rows(
    make_app: MakeApp, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(answer=ValueError("no such card"))
    with caplog.at_level(logging.WARNING, "outbox.rocketmq"):
        result = app.send(MESSAGE)
    remark = "executeLocalTransactionBranch exception: ValueError: no such card"
    assert (result.local_transaction_state, result.remark) == (UNKNOWN, remark)
    assert truth.message(result.msg_id) == ("UNKNOWN", remark)
    assert truth.rows() == []
    assert app.producer.counts["exceptions_total"] == 1
    assert "ValueError: no such card" in caplog.text
    assert "seven" not in caplog.text


def test_what_is_no_exception_but_an_end_is_not_swallowed(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(answer=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        app.send(MESSAGE)
    assert (truth.states(), truth.rows(), truth.lockable()) == (["UNKNOWN"], [], 1)


@pytest.mark.parametrize(
    ("sql", "answer", "wrong"),
    [
        ("SELECT 1 / 0", True, "a statement on msg.connection had failed"),
        ("SELECT 1 / 0", None, "a statement on msg.connection had failed"),
        ("ROLLBACK", True, "the listener had ended the transaction"),
        ("COMMIT", True, "the listener had ended the transaction"),
    ],
)
def test_a_local_transaction_that_cannot_commit_is_not_believed(
    make_app: MakeApp, truth: Truth, sql: str, answer: Any, wrong: str
) -> None:
    result = make_app(sql=sql, answer=answer).send(MESSAGE)
    assert result.local_transaction_state is UNKNOWN
    assert wrong in (result.remark or "")
    assert truth.message(result.msg_id) == ("UNKNOWN", result.remark)
    assert truth.rows() == (["row"] if sql == "COMMIT" else [])


def test_the_connection_refuses_to_be_committed_by_the_listener(make_app: MakeApp, truth: Truth) -> None:
    result = make_app(then=lambda msg: msg.connection.commit()).send(MESSAGE)
    assert "Explicit commit() forbidden" in (result.remark or "")
    assert truth.message(result.msg_id) == ("UNKNOWN", result.remark)
    assert truth.rows() == []


@pytest.mark.feature("S-11")
def test_the_half_message_is_durable_and_locked_while_the_listener_runs(
    make_app: MakeApp, truth: Truth
) -> None:
    seen: list[Any] = []
    app = make_app(then=lambda msg: seen.append((truth.states(), truth.lockable(), truth.rows())))
    app.send(MESSAGE)
    assert seen == [(["UNKNOWN"], 0, [])]
    assert (truth.states(), truth.lockable(), truth.rows()) == (["COMMITTED"], 1, ["row"])


@pytest.mark.feature("S-24", "S-29")
def test_the_listener_gets_the_message_and_the_arg(make_app: MakeApp) -> None:
    app, arg = make_app(), object()
    result = app.send(MESSAGE, arg)
    ((msg, given),) = app.listener.calls
    assert given is arg
    assert (msg.message_id, msg.transaction_id) == (result.msg_id, result.transaction_id)
    assert (msg.topic, msg.tags, msg.key, msg.body) == ("orders", ("created",), b"o-7", b"seven")
    assert (msg.index_keys, msg.biz_type, msg.biz_id) == (("o-7",), "order", "7")
    assert "seven" not in repr(msg)


STORED = """
    SELECT string_agg(found, ' ') FROM (
        SELECT query_to_xml(pg_catalog.format('SELECT * FROM %s', c.oid::regclass), true, false, '')::text AS found
        FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p')
    ) t
"""


@pytest.mark.feature("S-65")
def test_the_arg_is_stored_nowhere_and_a_check_does_not_get_it(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(answer=None)
    result = app.send(MESSAGE, "argument-of-the-call")
    (stored,) = truth.conn.execute(STORED).fetchone() or ("",)
    assert str(result.msg_id) in stored, "the tables were read"
    assert "argument-of-the-call" not in stored
    assert "arg" not in {field.name for field in dataclasses.fields(MessageView)}


@pytest.mark.feature("S-26")
def test_the_result_says_what_rocketmqs_says(make_app: MakeApp, truth: Truth) -> None:
    with psycopg.connect(truth.conn.info.dsn, password=truth.conn.info.password) as conn:
        Outbox().register_topic(conn, "orders", 4)
    app = make_app()
    result = app.send(Message("orders", key="o-7", transaction_id="tx-7"))
    assert result.send_status is SendStatus.SEND_OK
    assert result.message_queue.topic == "orders"
    assert result.message_queue.queue_id in range(4)
    assert (result.transaction_id, result.queue_offset, result.duplicate) == ("tx-7", None, False)
    with psycopg.connect(truth.conn.info.dsn, password=truth.conn.info.password) as conn:
        found = conn.execute(
            "SELECT message_id FROM outbox.message WHERE id = %s", [result.row_id]
        ).fetchone()
    assert found == (result.msg_id,)
    assert app.send(Message("orders", queue=3)).message_queue == MessageQueue("orders", 3)
    assert app.send(Message("orders", order_key=6, selector="modulo")).message_queue.queue_id == 2
    assert app.send(Message("orders")).message_queue.queue_id is None
    assert app.send(Message("flights", key="f")).message_queue.queue_id is None
    assert len({app.send(MESSAGE).transaction_id for _ in range(3)}) == 3


@pytest.mark.feature("S-22")
def test_the_same_key_again_runs_nothing_and_tells_what_became_of_the_first(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app()
    first = app.send(MESSAGE, idempotency_key="request-7")
    again = app.send(MESSAGE, idempotency_key="request-7")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert again.msg_id == first.msg_id
    assert again.transaction_id == first.transaction_id
    assert again.local_transaction_state is COMMIT
    assert len(app.listener.calls) == 1
    assert (truth.states(), truth.rows()) == (["COMMITTED"], ["row"])


def test_a_first_delay_of_its_own_is_stored(make_app: MakeApp, truth: Truth) -> None:
    make_app(answer=None).send(MESSAGE, check_after=90)
    assert truth.conn.execute("SELECT check_after = '90 s' FROM outbox.message").fetchone() == (True,)


@pytest.mark.feature("S-62")
def test_each_message_goes_to_its_listener(make_app: MakeApp) -> None:
    listeners = Listeners()
    app = make_app(options={"listeners": listeners})
    others = [type(app.listener)(answer=answer) for answer in (False, None)]
    listeners.register(others[0], topic="orders", tag="paid")
    listeners.register(others[1], checker="payment")
    listeners.register(app.listener)
    states = [
        app.send(message).local_transaction_state
        for message in (MESSAGE, Message("orders:paid"), Message("orders:paid", checker="payment"))
    ]
    assert states == [COMMIT, ROLLBACK, UNKNOWN]
    assert [len(listener.calls) for listener in (app.listener, *others)] == [1, 1, 1]


def test_the_rows_may_be_in_another_database(make_app: MakeApp, truth: Truth, make_database: Any) -> None:
    with psycopg.connect(make_database(migrated=False), autocommit=True) as elsewhere:
        elsewhere.execute("CREATE TABLE charge (id int)")
        locked: list[int] = []

        def charge(msg: Any) -> None:
            elsewhere.execute("INSERT INTO charge VALUES (1)")
            locked.append(truth.lockable())

        result = make_app(writes=None, then=charge).send(MESSAGE)
        assert result.local_transaction_state is COMMIT
        assert elsewhere.execute("SELECT count(*) FROM charge").fetchone() == (1,)
        assert locked == [0]
