"""RocketMQ 5.x's model on a real PostgreSQL: transactions that the application commits around its own."""

from __future__ import annotations

from typing import TypeVar

import psycopg
import pytest

from outbox import Message, MessageType, Outbox
from outbox.errors import (
    ConfigurationError,
    DecidedOtherwiseError,
    GroupTypeError,
    InvalidMessageError,
    WrongMessageTypeError,
)
from outbox.rocketmq import AmbiguousHalfMessageError, AsyncProducer, Producer, ProducerStateError
from tests.support.rocketmq_5x_applications import Checker, MakeApp5x
from tests.support.rocketmq_scripts import Cut, Truth

T = TypeVar("T")
MESSAGE = Message("orders:created", key="o-7", body=b"seven")


@pytest.mark.feature("S-73")
def test_rocketmqs_order_of_calls_publishes_after_the_local_commit(
    make_app_5x: MakeApp5x, truth: Truth
) -> None:
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    app.execute("INSERT INTO business VALUES ('row')")
    half = app.run(app.producer.send(MESSAGE, transaction))
    assert (truth.states(), truth.rows()) == (["UNKNOWN"], [])
    app.commit()
    assert (truth.states(), truth.rows()) == (["UNKNOWN"], ["row"])
    (decision,) = app.run(transaction.commit(remark="done"))
    assert (decision.state, decision.reason, decision.repeated) == ("COMMITTED", "done", False)
    assert truth.states() == ["COMMITTED"]
    assert half.transaction_id == transaction.transaction_id
    assert transaction.messages == (half,)


def test_a_commit_on_the_business_connection_is_part_of_its_transaction(
    make_app_5x: MakeApp5x, truth: Truth
) -> None:
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    app.run(transaction.join(app.conn))
    assert truth.lockable() == 0
    app.execute("INSERT INTO business VALUES ('row')")
    app.run(transaction.commit(app.conn))
    assert (truth.states(), truth.rows()) == (["UNKNOWN"], [])
    app.rollback()
    assert (truth.states(), truth.rows(), truth.lockable()) == (["UNKNOWN"], [], 1)
    app.execute("INSERT INTO business VALUES ('row')")
    app.run(transaction.commit(app.conn))
    app.commit()
    assert (truth.states(), truth.rows()) == (["COMMITTED"], ["row"])


def test_a_decision_that_would_wait_for_its_own_caller_ends_and_says_so(
    make_app_5x: MakeApp5x, truth: Truth
) -> None:
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    app.run(transaction.join(app.conn))
    with pytest.raises(psycopg.errors.LockNotAvailable) as caught:
        app.run(transaction.commit())
    assert "decide inside it, with commit(conn)" in caught.value.__notes__[0]
    app.commit()
    app.run(transaction.commit())
    assert truth.states() == ["COMMITTED"]


def test_all_messages_of_a_transaction_are_decided_together(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    for _ in range(3):
        app.run(app.producer.send(MESSAGE, transaction))
    truth.conn.execute("UPDATE outbox.message SET state = 'ROLLED_BACK', remark = 'by hand' WHERE id = 2")
    with pytest.raises(DecidedOtherwiseError, match="by hand"):
        app.run(transaction.commit())
    assert truth.states() == ["UNKNOWN", "ROLLED_BACK", "UNKNOWN"]
    assert app.producer.counts["confirm_failed_total"] == 3
    decisions = app.run(transaction.rollback())
    assert [decision.repeated for decision in decisions] == [False, True, False]
    assert truth.states() == ["ROLLED_BACK"] * 3


def test_the_same_decision_again_is_fine_and_the_opposite_is_not(
    make_app_5x: MakeApp5x, truth: Truth
) -> None:
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    app.run(transaction.commit())
    assert app.run(transaction.commit())[0].repeated
    with pytest.raises(DecidedOtherwiseError, match="was decided COMMITTED"):
        app.run(transaction.rollback())
    assert truth.states() == ["COMMITTED"]


def test_a_transaction_without_message_has_nothing_to_decide(make_app_5x: MakeApp5x) -> None:
    app = make_app_5x()
    transaction = app.producer.begin_transaction()
    with pytest.raises(ProducerStateError, match="has not been sent yet"):
        app.run(transaction.commit())


@pytest.mark.feature("S-18")
def test_a_half_message_in_doubt_is_rolled_back_and_raised(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x()
    app.producer._io = Cut(app.producer._io, 3, lose=True)
    transaction = app.producer.begin_transaction()
    with pytest.raises(AmbiguousHalfMessageError, match="half message rolled back") as caught:
        app.run(app.producer.send(MESSAGE, transaction))
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert (truth.states(), transaction.messages) == (["ROLLED_BACK"], ())


@pytest.mark.feature("S-72")
def test_a_topic_that_is_not_the_producers_is_refused(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x(topics=["orders", "payments"])
    transaction = app.producer.begin_transaction()
    with pytest.raises(
        InvalidMessageError, match="'flights' is not a topic of this producer; allowed: orders, payments"
    ):
        app.run(app.producer.send(Message("flights"), transaction))
    with pytest.raises(InvalidMessageError, match="'flights' is not a topic of this producer"):
        app.block(lambda block: app.run(block.send(Message("flights"))))
    app.run(app.producer.send(MESSAGE, transaction))
    assert truth.states() == ["UNKNOWN"]


@pytest.mark.feature("S-74")
def test_a_topic_of_another_type_stops_the_start(make_app_5x: MakeApp5x, database: str) -> None:
    with psycopg.connect(database) as conn:
        for name, message_type in (("delayed", MessageType.DELAY), ("orders", MessageType.TRANSACTION)):
            Outbox().register_topic(conn, name, 4, message_type=message_type)
    app = make_app_5x(topics=["orders", "delayed"], start=False)
    with pytest.raises(WrongMessageTypeError, match="topics: 'delayed' is of type DELAY"):
        app.start()
    make_app_5x(topics="orders")


@pytest.mark.feature("S-77")
def test_a_group_of_another_type_stops_the_start(make_app_5x: MakeApp5x, truth: Truth) -> None:
    truth.conn.execute("INSERT INTO outbox.producer_group (name, message_type) VALUES ('orders', 'NORMAL')")
    with pytest.raises(GroupTypeError, match="'orders' is registered as NORMAL"):
        make_app_5x()


def test_a_transaction_belongs_to_its_producer(make_app_5x: MakeApp5x) -> None:
    first, second = make_app_5x(), make_app_5x()
    for other, wrong in ((second.producer.begin_transaction(), "another producer's"), (None, "is NoneType")):
        with pytest.raises(ProducerStateError, match=wrong):
            first.run(first.producer.send(MESSAGE, other))


@pytest.mark.feature("S-76")
def test_a_producer_works_only_between_start_and_close(make_app_5x: MakeApp5x, truth: Truth) -> None:
    app = make_app_5x(start=False)
    with pytest.raises(ProducerStateError, match="not running"):
        app.producer.begin_transaction()
    app.start()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.close())
    with pytest.raises(ProducerStateError, match="not running"):
        app.run(app.producer.send(MESSAGE, transaction))
    assert truth.states() == []


def test_a_producer_without_checker_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="checker: missing"):
        Producer("host=nowhere", producer_group="orders")
    with pytest.raises(ConfigurationError, match="checker_connect: missing"):
        AsyncProducer(lambda: None, producer_group="orders", checker=Checker())
