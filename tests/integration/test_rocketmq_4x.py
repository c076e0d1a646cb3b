"""RocketMQ 4.x's model on a real PostgreSQL: what each answer and each mistake of a listener comes to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outbox import Message, MessageType, Outbox
from outbox.errors import ConfigurationError, GroupTypeError, InvalidMessageError, WrongMessageTypeError
from outbox.listeners import Listeners
from outbox.resolution import LocalTransactionState
from outbox.transactions import MessageQueue, ProducerStateError, SendStatus, TransactionMQProducer
from tests.producers import KINDS, App, AsyncApp, Listener, Truth

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
MESSAGE = Message(
    "orders:created", key="o-7", body=b"seven", index_keys=["o-7"], biz_type="order", biz_id="7"
)

MakeApp = Callable[..., App | AsyncApp]


@pytest.fixture
def truth(database: str) -> Iterator[Truth]:
    made = Truth(database)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def make_app(request: pytest.FixtureRequest, database: str, truth: Truth) -> Iterator[MakeApp]:
    """Make applications with a producer, running unless start=False; the script says what the listener does."""
    made: list[App | AsyncApp] = []

    def make(*, start: bool = True, options: dict[str, Any] | None = None, **script: Any) -> App | AsyncApp:
        app = KINDS[request.param](database, script, options or {})
        made.append(app)
        if start:
            app.start()
        return app

    yield make
    for app in made:
        app.close()


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
        ("perhaps", "answer is no state: 'perhaps'"),
        (1, "answer is no state: an object of int"),
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
    with caplog.at_level(logging.WARNING, "outbox.transactions"):
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


@pytest.mark.feature("S-12", "S-23")
@pytest.mark.parametrize(
    ("message", "error", "wrong"),
    [
        ("orders", InvalidMessageError, "message: is str"),
        (
            Message("orders", checker="payment"),
            ConfigurationError,
            "no listener is registered for checker 'payment'",
        ),
        (
            Message("normal"),
            WrongMessageTypeError,
            "'normal' is of type NORMAL, the message of type TRANSACTION",
        ),
        (Message("orders", body=b"x" * 2_000_000), InvalidMessageError, "too many for topic 'orders'"),
        (Message("orders", key="k", selector="mine"), InvalidMessageError, "'mine' is not registered"),
    ],
)
def test_a_message_that_cannot_be_sent_runs_nothing_and_writes_nothing(
    make_app: MakeApp, truth: Truth, message: Any, error: type[Exception], wrong: str
) -> None:
    with psycopg.connect(truth.conn.info.dsn, password=truth.conn.info.password) as conn:
        Outbox().register_topic(conn, "normal", 4, message_type=MessageType.NORMAL)
    app = make_app()
    with pytest.raises(error, match=wrong):
        app.send(message)
    assert (app.listener.calls, truth.states()) == ([], [])


@pytest.mark.feature("S-12")
def test_a_half_message_that_the_database_refuses_runs_nothing(make_app: MakeApp, truth: Truth) -> None:
    truth.conn.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'full'; END $$;"
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON outbox.message DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    app = make_app()
    with pytest.raises(psycopg.errors.RaiseException):  # by COMMIT: the insert itself went through
        app.send(MESSAGE)
    truth.conn.execute("DROP TRIGGER late ON outbox.message")
    assert (app.listener.calls, truth.states()) == ([], [])
    assert app.send(MESSAGE).local_transaction_state is COMMIT


@pytest.mark.feature("S-23")
def test_without_an_executor_nothing_is_written(make_app: MakeApp, truth: Truth) -> None:
    listeners = Listeners()
    listeners.register(lambda view: None)
    app = make_app(options={"listeners": listeners})
    with pytest.raises(ConfigurationError, match="tranExecutor is null"):
        app.send(MESSAGE)
    assert truth.states() == []
    assert app.send(MESSAGE, True, execute=lambda msg, arg: arg).local_transaction_state is COMMIT


@pytest.mark.feature("S-23", "S-60")
def test_a_producer_without_listener_sends_nothing_until_it_has_one(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(options={"listeners": Listeners()})
    with pytest.raises(ConfigurationError, match="no listener is registered for topic 'orders'"):
        app.send(MESSAGE)
    app.producer.set_transaction_listener(app.listener)
    with pytest.raises(ConfigurationError, match="the default has"):
        app.producer.set_transaction_listener(app.listener)
    assert app.send(MESSAGE).local_transaction_state is COMMIT
    assert truth.states() == ["COMMITTED"]


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


@pytest.mark.feature("S-76")
def test_a_producer_sends_only_between_start_and_shutdown(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(start=False)
    with pytest.raises(ProducerStateError, match="not running"):
        app.send(MESSAGE)
    app.start()
    with pytest.raises(ProducerStateError, match="started before"):
        app.start()
    app.send(MESSAGE)
    producer = app.producer
    if isinstance(app, AsyncApp):
        app.run(app.producer.shutdown())
    else:
        app.producer.shutdown()
    assert not producer.running
    with pytest.raises(ProducerStateError, match="not running"):
        app.send(MESSAGE)
    assert truth.states() == ["COMMITTED"]


@pytest.mark.feature("S-77")
def test_a_group_is_registered_for_half_messages_and_not_taken_from_others(
    make_app: MakeApp, truth: Truth
) -> None:
    make_app()
    assert truth.conn.execute("SELECT name, message_type FROM outbox.producer_group").fetchall() == [
        ("orders", "TRANSACTION")
    ]
    make_app()  # a second producer of the group is welcome
    truth.conn.execute("UPDATE outbox.producer_group SET message_type = 'MIXED'")
    make_app()
    truth.conn.execute("UPDATE outbox.producer_group SET message_type = 'NORMAL'")
    with pytest.raises(GroupTypeError, match="'orders' is registered as NORMAL"):
        make_app()


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"listener": Listener(), "listeners": Listeners()}, "come with a single listener as well"),
        ({"listener": Listener(), "transaction_listener": Listener()}, "by another name"),
        ({"listener": object()}, "object has nothing to call"),
        ({"listener": Listener(), "connect": 7}, "connect: is int"),
        ({"listener": Listener(), "connections": 0}, "connections: 0"),
        ({"listener": Listener(), "producer_group": ""}, "producer_group: is empty"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_made(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=wrong):
        TransactionMQProducer(
            options.pop("producer_group", "orders"), options.pop("connect", "host=nowhere"), **options
        )
