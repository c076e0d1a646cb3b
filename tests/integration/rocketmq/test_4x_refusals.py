"""RocketMQ 4.x's model: what is refused before anything is written."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from outbox import Message, MessageType, Outbox
from outbox.checking import Listeners
from outbox.errors import ConfigurationError, GroupTypeError, InvalidMessageError, WrongMessageTypeError
from outbox.rocketmq import LocalTransactionState, ProducerStateError, TransactionMQProducer
from tests.support.rocketmq_scripts import AsyncApp, Listener, MakeApp, Truth

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
MESSAGE = Message(
    "orders:created", key="o-7", body=b"seven", index_keys=["o-7"], biz_type="order", biz_id="7"
)


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


def send(truth: Truth) -> None:
    with truth.conn.transaction():
        Outbox("orders").send(truth.conn, MESSAGE)


@pytest.mark.feature("S-77")
def test_a_group_that_sends_normal_messages_is_not_made_transactional(
    make_app: MakeApp, truth: Truth
) -> None:
    send(truth)
    for _ in range(2):
        with pytest.raises(
            GroupTypeError, match="'orders' is not registered, which makes it MIXED, and it sends"
        ) as caught:
            make_app()
        assert "outbox group set orders --type MIXED" in str(caught.value)
    assert truth.conn.execute("SELECT count(*) FROM outbox.producer_group").fetchone() == (0,)
    send(truth)
    with truth.conn.transaction():
        Outbox().register_group(truth.conn, "orders", message_type="MIXED")
    make_app().send(MESSAGE)
    send(truth)


@pytest.mark.feature("S-77")
def test_a_group_that_sent_half_messages_only_becomes_transactional(make_app: MakeApp, truth: Truth) -> None:
    outbox = Outbox("orders")
    for decide in (outbox.commit, outbox.rollback):
        with truth.conn.transaction():
            decide(truth.conn, outbox.prepare(truth.conn, MESSAGE))
    make_app().send(MESSAGE)
    assert truth.conn.execute("SELECT message_type FROM outbox.producer_group").fetchone() == ("TRANSACTION",)


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
