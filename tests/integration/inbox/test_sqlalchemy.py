"""Listeners with a Session of SQLAlchemy: one transaction with the inbox, which the session cannot end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import Column, Integer, String, Table, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import registry, sessionmaker

from outbox import Message, Outbox
from outbox.errors import ConfigurationError, ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox.inbox.sqlalchemy import connections_of, session_listener
from tests.support.inbox_stage import InboxStage
from tests.support.waiting import wait_until

MAPPERS = registry()
Listener = Callable[[Any, ConsumedMessage], ConsumeResult]


class Point:
    """A row of the application."""

    def __init__(self, body: str, customer: str = "c") -> None:
        self.body, self.customer = body, customer


MAPPERS.map_imperatively(
    Point,
    Table(
        "point",
        MAPPERS.metadata,
        Column("id", Integer, primary_key=True),
        Column("body", String, unique=True),
        Column("customer", String, nullable=False),
    ),
)


@pytest.fixture
def engine(inbox: InboxStage) -> Iterator[sqlalchemy.Engine]:
    """An engine on the database of the test, with a table."""
    found = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(inbox.dsn))
    MAPPERS.metadata.create_all(found)
    yield found
    found.dispose()


def add(session: Any, message: ConsumedMessage) -> ConsumeResult:
    session.add(Point(text_of(message)))
    return ConsumeResult.SUCCESS


def text_of(message: ConsumedMessage) -> str:
    assert message.body is not None
    return message.body.decode()


def consumer(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine, listener: Listener, **options: Any
) -> PushConsumer:
    """Make a consumer whose listener gets a session."""
    sessions = {"sessions": options.pop("sessions")} if "sessions" in options else {}
    return inbox.consumer(
        topic, session_listener(listener, engine, **sessions), dsn=connections_of(engine), **options
    )


def points(inbox: InboxStage) -> list[str]:
    """The rows that are committed, by their bodies."""
    return sorted(row[0] for row in inbox.conn.execute("SELECT body FROM point").fetchall())


def test_what_a_session_adds_is_committed_with_the_inbox(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    inbox.produce_numbered(topic, 20)
    with consumer(inbox, topic, engine, add):
        wait_until(lambda: inbox.count("point") == 20, "all are applied")
    assert inbox.count("outbox.inbox") == 20
    inbox.set_committed(topic, dict.fromkeys(range(4), 0))
    inbox.produce_numbered(topic, 1, start=20)
    with consumer(inbox, topic, engine, add):
        wait_until(lambda: inbox.count("point") == 21, "the last one is applied, and no other again")


def test_a_listener_on_a_plain_connection_may_use_a_session(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, session_listener(add, engine)):
        wait_until(lambda: inbox.count("point") == 8, "all are applied")


def test_a_session_of_the_applications_own_making_is_used(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    seen: list[object] = []

    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        seen.append((session.info, session.autoflush))
        return add(session, message)

    inbox.produce_numbered(topic, 1)
    own = sessionmaker(info={"own": 1}, autoflush=False)
    with consumer(inbox, topic, engine, listener, sessions=own):
        wait_until(lambda: inbox.count("point") == 1, "it is applied")
    assert seen == [({"own": 1}, False)]


@pytest.mark.parametrize("result", [ConsumeResult.DISCARD, ConsumeResult.RECONSUME_LATER, ValueError("no")])
def test_a_session_of_a_message_that_is_not_applied_leaves_nothing(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine, result: ConsumeResult | ValueError
) -> None:
    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        add(session, message)
        session.flush()
        if text_of(message) != "0":
            return ConsumeResult.SUCCESS
        if isinstance(result, ValueError):
            raise result
        return result

    inbox.produce_numbered(topic, 4)
    with consumer(inbox, topic, engine, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox") == 4, "all are handled")
        wait_until(lambda: inbox.count("point") == 3, "three are applied")
    dead = inbox.conn.execute("SELECT fingerprint FROM outbox.inbox_parked WHERE state = 'dead'").fetchall()
    assert len(dead) == (0 if result is ConsumeResult.DISCARD else 1)
    if isinstance(result, ValueError):
        assert dead[0][0].startswith("ValueError at ")


def _commits(session: Any) -> None:
    session.commit()


def _begins_and_commits(session: Any) -> None:
    session.rollback()
    with session.begin():
        session.add(Point("in begin"))


def _commits_the_connection(session: Any) -> None:
    session.connection().commit()


def _commits_below(session: Any) -> None:
    session.connection().connection.driver_connection.commit()


def _commits_from_a_savepoint(session: Any) -> None:
    session.begin_nested()
    session.commit()


COMMITS = [_commits, _begins_and_commits, _commits_the_connection, _commits_below, _commits_from_a_savepoint]


@pytest.mark.parametrize("commits", COMMITS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("swallows", [False, True], ids=["raises", "swallows"])
def test_a_session_that_commits_ends_nothing(
    inbox: InboxStage,
    topic: str,
    engine: sqlalchemy.Engine,
    commits: Callable[[Any], None],
    swallows: bool,
) -> None:
    committed: list[int] = []

    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        add(session, message)
        session.flush()
        if swallows:
            with pytest.raises(ListenerError, match="leave out"):
                commits(session)
        else:
            commits(session)
        return ConsumeResult.SUCCESS

    def ends(session: Any, message: ConsumedMessage) -> ConsumeResult:
        try:
            return listener(session, message)
        finally:
            committed.append(inbox.count("point") + inbox.count("outbox.inbox"))

    inbox.produce(topic, "k", "1")
    inbox.flush()
    with consumer(inbox, topic, engine, ends, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox"), "it is handled")
    assert committed == [0], "the listener has committed"
    errors = inbox.conn.execute("SELECT error FROM outbox.inbox_parked").fetchall()
    if swallows and not errors:
        assert set(points(inbox)) <= {"1", "in begin"}
    else:
        assert points(inbox) == []
    if not swallows:
        assert "ListenerError" in errors[0][0]


def test_a_session_that_rolls_back_goes_on_in_the_same_transaction(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        session.add(Point("same"))
        try:
            session.flush()
        except IntegrityError:
            session.rollback()
            return add(session, message)
        session.rollback()
        session.add(Point(f"first {text_of(message)}"))
        session.execute(
            text("INSERT INTO point (body, customer) VALUES ('same', 'c') ON CONFLICT DO NOTHING")
        )
        return ConsumeResult.SUCCESS

    for number in range(3):
        inbox.produce(topic, "k", str(number))
    inbox.flush()
    with consumer(inbox, topic, engine, listener, orderly=True):
        wait_until(lambda: inbox.count("outbox.inbox") == 3, "all are handled")
    assert points(inbox) == ["1", "2", "first 0", "same"]
    assert inbox.count("outbox.inbox_parked") == 0


def test_savepoints_of_a_session_work(inbox: InboxStage, topic: str, engine: sqlalchemy.Engine) -> None:
    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        with session.begin_nested():
            add(session, message)
        nested = session.begin_nested()
        add(session, message)
        with pytest.raises(IntegrityError):
            session.flush()
        nested.rollback()
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 2)
    with consumer(inbox, topic, engine, listener):
        wait_until(lambda: inbox.count("point") == 2, "both are applied")
    assert inbox.count("outbox.inbox_parked") == 0


def test_an_error_of_the_last_flush_is_a_failed_attempt(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        session.add(Point(text_of(message), customer=None))  # type: ignore[arg-type]
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, engine, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert inbox.count("outbox.inbox_parked", "fingerprint LIKE 'IntegrityError at %'") == 1
    assert points(inbox) == []


def test_an_error_of_postgresql_that_a_session_swallows_is_a_failure(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        add(session, message)
        with pytest.raises(sqlalchemy.exc.DataError):
            session.execute(text("SELECT 1 / 0"))
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, engine, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert points(inbox) == []


def test_a_deadlock_in_a_session_costs_no_attempt(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    seen: list[int] = []

    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        if len(seen) < 3:
            session.execute(text("DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '40P01'; END $$"))
        return add(session, message)

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, engine, listener):
        wait_until(lambda: inbox.count("point") == 1, "it is applied")
    assert seen == [0, 0, 0]


def test_a_session_whose_server_goes_away_costs_no_attempt(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    seen: list[int] = []

    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message.reconsume_times)
        add(session, message)
        session.flush()
        if len(seen) == 1:
            session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, engine, listener):
        wait_until(lambda: inbox.count("point") == 1, "it is applied")
    assert seen == [0, 0]
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_session_that_ends_its_transaction_by_text_is_noticed(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        add(session, message)
        session.flush()
        session.execute(text("COMMIT"))
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, engine, listener):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "it is dead")
    assert inbox.count("outbox.inbox_parked", "error LIKE '%ended the transaction%'") == 1
    assert points(inbox) == ["0"], "what was committed is applied once"


@pytest.mark.feature("H-14")
def test_what_a_session_sends_by_the_outbox_leaves_with_its_effect(
    inbox: InboxStage, topic: str, engine: sqlalchemy.Engine
) -> None:
    outbox = Outbox(producer_group="points")

    def listener(session: Any, message: ConsumedMessage) -> ConsumeResult:
        add(session, message)
        session.flush()
        below = session.connection().connection.driver_connection
        outbox.send(below, Message("points", body=message.body))
        if text_of(message) == "1":
            raise ValueError("after it was sent")
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 3, keys=1)
    with consumer(inbox, topic, engine, listener, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one has failed")
        wait_until(lambda: inbox.count("point") == 2, "the others are applied")
    sent = inbox.conn.execute("SELECT convert_from(body, 'UTF8') FROM outbox.message ORDER BY 1").fetchall()
    assert sent == [("0",), ("2",)]


def test_a_batch_listener_may_use_a_session(inbox: InboxStage, topic: str, engine: sqlalchemy.Engine) -> None:
    def listener(session: Any, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        for message in messages:
            add(session, message)
        later = ConsumeResult.RECONSUME_LATER
        return [later if each.body == b"3" else ConsumeResult.SUCCESS for each in messages]

    inbox.produce_numbered(topic, 10, keys=10)
    options: dict[str, Any] = {"batch": 10, "linger": 1.0, "workers": 1, "delays": DelaySchedule.of([])}
    with inbox.consumer(topic, session_listener(listener, engine), dsn=connections_of(engine), **options):
        wait_until(lambda: inbox.count("point") == 9, "all but one are applied")
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "one is dead")
    assert points(inbox) == [str(number) for number in range(10) if number != 3]


def test_an_engine_of_another_driver_is_refused() -> None:
    other = sqlalchemy.create_engine("sqlite://")
    for makes in (lambda: connections_of(other), lambda: session_listener(add, other)):
        with pytest.raises(ConfigurationError, match="postgresql"):
            makes()
