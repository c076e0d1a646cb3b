"""RocketMQ 5.x's model on a real PostgreSQL: transactions that the application commits around its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import psycopg
import pytest
from psycopg import IsolationLevel

from outbox import Message, MessageType, Outbox
from outbox.errors import (
    ConfigurationError,
    DecidedOtherwiseError,
    GroupTypeError,
    InvalidMessageError,
    UnknownMessageError,
    WrongMessageTypeError,
)
from outbox.transactions import AmbiguousHalfError, AsyncProducer, Producer, ProducerStateError
from tests.producers import Cut, Truth

T = TypeVar("T")
MESSAGE = Message("orders:created", key="o-7", body=b"seven")
MOST_STEPS = 30


class Checker:
    """RocketMQ 5.x's TransactionChecker."""

    def check(self, message_view: Any) -> Any:
        return None


class App:
    """An application with one `Producer` and a business connection, called in one way for both kinds."""

    def __init__(self, dsn: str, options: dict[str, Any]) -> None:
        self.producer: Any = self.make(options.pop("connect", dsn), **options)
        self.conn: Any = self.run(self.connect(dsn))

    make: Callable[..., Any] = Producer

    def connect(self, dsn: str) -> Any:
        return psycopg.connect(dsn)

    def run(self, done: T) -> T:
        return done

    def start(self) -> None:
        self.run(self.producer.start())

    def execute(self, sql: str) -> None:
        self.run(self.conn.execute(sql))

    def commit(self) -> None:
        self.run(self.conn.commit())

    def rollback(self) -> None:
        self.run(self.conn.rollback())

    def block(self, work: Callable[[Any], None]) -> None:
        with self.producer.begin(self.conn) as transaction:
            work(transaction)

    def close(self) -> None:
        self.run(self.producer.shutdown())
        self.run(self.conn.close())


class AsyncApp(App):
    """The same with an `AsyncProducer`; each call runs to its end on an event loop of its own."""

    make = AsyncProducer

    def __init__(self, dsn: str, options: dict[str, Any]) -> None:
        self.runner = asyncio.Runner()
        super().__init__(dsn, options)

    def connect(self, dsn: str) -> Any:
        return psycopg.AsyncConnection.connect(dsn)

    def run(self, done: Any) -> Any:
        async def wait(awaitable: Awaitable[Any]) -> Any:
            return await awaitable

        return self.runner.run(wait(done)) if hasattr(done, "__await__") else done

    def block(self, work: Callable[[Any], None]) -> None:
        manager = self.producer.begin(self.conn)
        transaction = self.run(manager.__aenter__())
        try:
            work(transaction)
        except BaseException as error:
            if not self.run(manager.__aexit__(type(error), error, None)):
                raise
        else:
            self.run(manager.__aexit__(None, None, None))

    def close(self) -> None:
        super().close()
        self.runner.close()


MakeApp = Callable[..., App]


@pytest.fixture
def truth(database: str) -> Iterator[Truth]:
    made = Truth(database)
    yield made
    made.close()


@pytest.fixture(params=[App, AsyncApp], ids=["threads", "asyncio"])
def make_app(request: pytest.FixtureRequest, database: str, truth: Truth) -> Iterator[MakeApp]:
    made: list[App] = []

    def make(*, start: bool = True, **options: Any) -> App:
        given = {"producer_group": "orders", "checker": Checker(), "check": False, **options}
        app: App = request.param(database, given)
        made.append(app)
        if start:
            app.start()
        return app

    yield make
    for app in made:
        app.close()


@pytest.mark.feature("S-73")
def test_rocketmqs_order_of_calls_publishes_after_the_local_commit(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
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
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app()
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


def test_all_messages_of_a_transaction_are_decided_together(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
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


def test_the_same_decision_again_is_fine_and_the_opposite_is_not(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    app.run(transaction.commit())
    assert app.run(transaction.commit())[0].repeated
    with pytest.raises(DecidedOtherwiseError, match="was decided COMMITTED"):
        app.run(transaction.rollback())
    assert truth.states() == ["COMMITTED"]


def test_a_transaction_without_message_has_nothing_to_decide(make_app: MakeApp) -> None:
    app = make_app()
    transaction = app.producer.begin_transaction()
    with pytest.raises(ProducerStateError, match="has not been sent yet"):
        app.run(transaction.commit())


@pytest.mark.feature("S-73")
def test_a_block_commits_rows_and_message_together(make_app: MakeApp, truth: Truth) -> None:
    app, seen = make_app(), []

    def work(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('row')")
        half = app.run(transaction.send(MESSAGE))
        assert half.transaction_id == transaction.transaction_id
        seen.append((truth.states(), truth.lockable(), truth.rows()))

    app.block(work)
    assert seen == [(["UNKNOWN"], 0, [])]
    assert (truth.states(), truth.lockable(), truth.rows()) == (["COMMITTED"], 1, ["row"])
    assert app.producer.counts["committed_total"] == 1


@pytest.mark.feature("S-73")
def test_an_exception_in_a_block_rolls_rows_back_and_leaves_the_message_to_the_check(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app()

    def work(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('row')")
        app.run(transaction.send(MESSAGE))
        raise ValueError("card declined, or was it")

    with pytest.raises(ValueError, match="card declined"):
        app.block(work)
    message = truth.conn.execute("SELECT state, remark FROM outbox.message").fetchone()
    assert message == ("UNKNOWN", "local transaction exception: ValueError: card declined, or was it")
    assert (truth.rows(), truth.lockable()) == ([], 1)
    assert app.producer.counts["unknown_total"] == 1


@pytest.mark.parametrize("by", ["rollback", "psycopg.Rollback"])
def test_an_explicit_rollback_in_a_block_withdraws_rows_and_message(
    make_app: MakeApp, truth: Truth, by: str
) -> None:
    app = make_app()

    def work(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('row')")
        app.run(transaction.send(MESSAGE))
        if by != "rollback":
            raise psycopg.Rollback
        transaction.rollback("sold out")

    app.block(work)
    remark = "sold out" if by == "rollback" else "the transaction was rolled back"
    message = truth.conn.execute("SELECT state, remark FROM outbox.message").fetchone()
    assert message == ("ROLLED_BACK", remark)
    assert truth.rows() == []


def test_a_block_without_message_is_a_plain_transaction(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.block(lambda transaction: app.execute("INSERT INTO business VALUES ('kept')"))

    def fail(transaction: Any) -> None:
        app.execute("INSERT INTO business VALUES ('lost')")
        raise LookupError

    with pytest.raises(LookupError):
        app.block(fail)
    assert (truth.rows(), truth.states()) == (["kept"], [])


def test_a_block_inside_a_transaction_is_decided_with_it(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.execute("INSERT INTO business VALUES ('outer')")
    app.block(lambda transaction: app.run(transaction.send(MESSAGE)))
    assert truth.states() == ["UNKNOWN"]
    app.commit()
    assert (truth.states(), truth.rows()) == (["COMMITTED"], ["outer"])


def test_a_block_whose_message_was_rolled_back_commits_nothing(make_app: MakeApp, truth: Truth) -> None:
    """As when the server lost the lock with its connection; here the block is not even locked."""
    app = make_app()
    transaction = app.producer.begin_transaction()
    app.run(app.producer.send(MESSAGE, transaction))
    truth.decide("ROLLED_BACK", "nothing was found")
    app.execute("INSERT INTO business VALUES ('row')")
    with pytest.raises(DecidedOtherwiseError, match="nothing was found"):
        app.run(transaction.commit(app.conn))
    app.rollback()
    with pytest.raises(DecidedOtherwiseError, match="nothing was found"):
        app.run(transaction.join(app.conn))
    app.rollback()
    assert (truth.states(), truth.rows()) == (["ROLLED_BACK"], [])


def test_an_old_snapshot_that_cannot_see_the_half_message_is_explained(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app()
    if isinstance(app, AsyncApp):
        app.run(app.conn.set_isolation_level(IsolationLevel.REPEATABLE_READ))
    else:
        app.conn.isolation_level = IsolationLevel.REPEATABLE_READ

    def late(transaction: Any) -> None:
        app.execute("SELECT FROM business")
        app.run(transaction.send(MESSAGE))

    with pytest.raises(UnknownMessageError) as caught:
        app.block(late)
    assert "send before the block's first statement" in caught.value.__notes__[0]
    app.block(lambda transaction: app.run(transaction.send(MESSAGE)))
    assert truth.states() == ["UNKNOWN", "COMMITTED"]


@pytest.mark.feature("S-73")
@pytest.mark.parametrize("whose", ["producer", "business"])
def test_a_connection_killed_before_any_step_of_a_block_never_parts_message_and_rows(
    make_app: MakeApp, truth: Truth, database: str, whose: str
) -> None:
    app = make_app()
    io, struck = app.producer._io, []
    for at in range(MOST_STEPS):
        truth.conn.execute("TRUNCATE business")
        truth.decide("ROLLED_BACK", "of an earlier round")
        before = len(truth.states())
        business = app.conn.info.backend_pid

        def strike(conn: Any, business: int = business) -> None:
            truth.kill(business if whose == "business" else conn.info.backend_pid)

        app.producer._io = cut = Cut(io, at, before=strike)

        def work(transaction: Any) -> None:
            app.run(transaction.send(MESSAGE))
            app.execute("INSERT INTO business VALUES ('row')")

        ended = False
        with suppress(psycopg.OperationalError, AmbiguousHalfError):
            app.block(work)
            ended = True
        app.producer._io = io
        if cut.struck is None and at > 0:
            break
        struck.append(cut.struck)
        if app.conn.closed:
            app.conn = app.run(app.connect(database))
        rows, states = truth.rows(), truth.states()[before:]
        assert truth.lockable() == len(truth.states()), "a lock was left"
        assert (rows == ["row"]) == (states == ["COMMITTED"]), f"step {at} parted {rows} and {states}"
        assert ended == (rows == ["row"]), f"step {at}: ended {ended} with {states}"
        assert states in ([], ["UNKNOWN"], ["ROLLED_BACK"], ["COMMITTED"])
    assert {"begin", "verb", "commit"} <= set(struck)


@pytest.mark.feature("S-18")
def test_a_half_message_in_doubt_is_rolled_back_and_raised(make_app: MakeApp, truth: Truth) -> None:
    app = make_app()
    app.producer._io = Cut(app.producer._io, 3, lose=True)
    transaction = app.producer.begin_transaction()
    with pytest.raises(AmbiguousHalfError, match="half message rolled back") as caught:
        app.run(app.producer.send(MESSAGE, transaction))
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert (truth.states(), transaction.messages) == (["ROLLED_BACK"], ())


@pytest.mark.feature("S-72")
def test_a_topic_that_is_not_the_producers_is_refused(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(topics=["orders", "payments"])
    transaction = app.producer.begin_transaction()
    with pytest.raises(
        InvalidMessageError, match="'flights' is none of this producer's; allowed: orders, payments"
    ):
        app.run(app.producer.send(Message("flights"), transaction))
    with pytest.raises(InvalidMessageError, match="'flights' is none"):
        app.block(lambda block: app.run(block.send(Message("flights"))))
    app.run(app.producer.send(MESSAGE, transaction))
    assert truth.states() == ["UNKNOWN"]


@pytest.mark.feature("S-74")
def test_a_topic_of_another_type_stops_the_start(make_app: MakeApp, database: str) -> None:
    with psycopg.connect(database) as conn:
        for name, message_type in (("delayed", MessageType.DELAY), ("orders", MessageType.TRANSACTION)):
            Outbox().register_topic(conn, name, 4, message_type=message_type)
    app = make_app(topics=["orders", "delayed"], start=False)
    with pytest.raises(WrongMessageTypeError, match="topics: 'delayed' is of type DELAY"):
        app.start()
    make_app(topics="orders")


@pytest.mark.feature("S-77")
def test_a_group_of_another_type_stops_the_start(make_app: MakeApp, truth: Truth) -> None:
    truth.conn.execute("INSERT INTO outbox.producer_group (name, message_type) VALUES ('orders', 'NORMAL')")
    with pytest.raises(GroupTypeError, match="'orders' is registered as NORMAL"):
        make_app()


def test_a_transaction_belongs_to_its_producer(make_app: MakeApp) -> None:
    first, second = make_app(), make_app()
    for other, wrong in ((second.producer.begin_transaction(), "another producer's"), (None, "is NoneType")):
        with pytest.raises(ProducerStateError, match=wrong):
            first.run(first.producer.send(MESSAGE, other))


@pytest.mark.feature("S-76")
def test_a_producer_works_only_between_start_and_close(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(start=False)
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
