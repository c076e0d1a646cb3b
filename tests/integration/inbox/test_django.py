"""Listeners that write through Django: one transaction with the inbox, which Django cannot end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
import pytest
from django.db import IntegrityError, connections, models, transaction

from outbox import Message, Outbox
from outbox.errors import ConfigurationError, ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox.inbox.django import connections_of, django_listener
from tests.support.django_project import alias_of, databases
from tests.support.inbox_stage import InboxStage
from tests.support.servers import MakeDatabase
from tests.support.waiting import wait_until

SUCCESS = ConsumeResult.SUCCESS
Listener = Callable[[Any, ConsumedMessage], ConsumeResult]


class Point(models.Model):  # type: ignore[misc]
    """A row of the application."""

    body = models.TextField(unique=True)
    customer = models.TextField(default="c")
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        """Of an application that is not installed."""

        app_label = "points"
        db_table = "point"


@pytest.fixture
def aliases(inbox: InboxStage, make_database: MakeDatabase) -> Iterator[None]:
    """Two databases: that of the inbox, with a table, and another one, with the same table."""
    given = {"default": alias_of(inbox.dsn), "other": alias_of(make_database())}
    with databases(**given):
        for alias in given:
            with connections[alias].schema_editor() as editor:
                editor.create_model(Point)
        yield


def text_of(message: ConsumedMessage) -> str:
    assert message.body is not None
    return message.body.decode()


def add(connection: Any, message: ConsumedMessage) -> ConsumeResult:
    Point.objects.create(body=text_of(message))
    return SUCCESS


def consumer(inbox: InboxStage, topic: str, listener: Listener, **options: Any) -> PushConsumer:
    """Make a consumer whose listener gets a connection of Django."""
    also = options.pop("also", ())
    return inbox.consumer(topic, django_listener(listener, also=also), dsn=connections_of(), **options)


def points(inbox: InboxStage) -> list[str]:
    """The rows that are committed, by their bodies."""
    return sorted(row[0] for row in inbox.conn.execute("SELECT body FROM point").fetchall())


def dead(inbox: InboxStage) -> str:
    """The errors of the dead letters."""
    rows = inbox.conn.execute("SELECT error FROM outbox.inbox_parked WHERE state = 'dead'").fetchall()
    return "\n".join(row[0] for row in rows)


@pytest.mark.usefixtures("aliases")
def test_what_models_write_is_committed_with_the_inbox(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 20)
    with consumer(inbox, topic, add):
        wait_until(lambda: inbox.count("point") == 20, "all are applied")
    assert inbox.count("outbox.inbox") == 20
    inbox.set_committed(topic, dict.fromkeys(range(4), 0))
    inbox.produce_numbered(topic, 1, start=20)
    with consumer(inbox, topic, add):
        wait_until(lambda: inbox.count("point") == 21, "the last one is applied, and no other again")


@pytest.mark.usefixtures("aliases")
def test_the_listener_gets_the_connection_of_the_alias(inbox: InboxStage, topic: str) -> None:
    seen: list[bool] = []

    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()::text")
            mine = cursor.fetchone()[0]
            cursor.execute("INSERT INTO point (body, customer, at) VALUES ('by hand', 'c', now())")
        found = Point.objects.get(body="by hand")
        same = Point.objects.raw("SELECT *, pg_current_xact_id()::text AS xid FROM point")[0].xid == mine
        seen.append(connections["default"] is connection and same and found.at.tzinfo is not None)
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, listener):
        wait_until(lambda: points(inbox) == ["by hand"], "it is applied")
    assert seen == [True]


@pytest.mark.usefixtures("aliases")
def test_an_atomic_block_is_a_savepoint(inbox: InboxStage, topic: str) -> None:
    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        with transaction.atomic():
            Point.objects.create(body=f"kept {text_of(message)}")
        try:
            with transaction.atomic():
                Point.objects.create(body=f"lost {text_of(message)}")
                Point.objects.create(body=f"kept {text_of(message)}")
        except IntegrityError:
            Point.objects.create(body=f"late {text_of(message)}")
        with pytest.raises(RuntimeError, match="durable"), transaction.atomic(durable=True):
            pass
        return SUCCESS

    inbox.produce_numbered(topic, 2)
    with consumer(inbox, topic, listener):
        wait_until(lambda: inbox.count("point") == 4, "what was rolled back is not there")
    assert points(inbox) == ["kept 0", "kept 1", "late 0", "late 1"]
    assert inbox.count("outbox.inbox") == 2
    assert inbox.count("outbox.inbox_parked") == 0


@pytest.mark.usefixtures("aliases")
@pytest.mark.parametrize(
    ("misuse", "error"),
    [
        (lambda connection: connection.commit(), "did nothing"),
        (lambda connection: transaction.rollback(), "did nothing"),
        (lambda connection: connection.set_autocommit(True), "did nothing"),
        (lambda connection: connections.close_all(), "did nothing"),
        (lambda connection: connection.connection.commit(), "commit\\(\\) or rollback\\(\\) was called"),
        (lambda connection: transaction.on_commit(print), "on_commit"),
        (lambda connection: Point.objects.using("other").count(), "database 'other'"),
        (lambda connection: Point.objects.using("other").create(body="elsewhere"), "database 'other'"),
    ],
)
def test_what_would_leave_the_transaction_is_refused(
    inbox: InboxStage, topic: str, misuse: Callable[[Any], object], error: str
) -> None:
    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        Point.objects.create(body=text_of(message))
        with pytest.raises(ListenerError, match=error):
            misuse(connection)
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, listener):
        wait_until(lambda: inbox.count("outbox.inbox") == 1, "it is handled")
    assert points(inbox) == ["0"], dead(inbox)
    assert Point.objects.using("other").count() == 0


@pytest.mark.usefixtures("aliases")
def test_another_alias_may_be_used_if_it_is_named(inbox: InboxStage, topic: str) -> None:
    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        Point.objects.using("other").create(body=text_of(message))
        connections["other"].close()
        return add(connection, message)

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, listener, also=["other"]):
        wait_until(lambda: points(inbox) == ["0"], "it is applied")
    assert Point.objects.using("other").count() == 1


@pytest.mark.usefixtures("aliases")
def test_a_listener_that_fails_leaves_nothing(inbox: InboxStage, topic: str) -> None:
    attempts: list[str] = []

    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        add(connection, message)
        attempts.append(text_of(message))
        if len(attempts) == 1:
            raise ValueError("the first attempt")
        if len(attempts) == 2:
            transaction.set_rollback(True)
        return SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, listener, delays=DelaySchedule.of([0.05] * 5)):
        wait_until(lambda: points(inbox) == ["0"], "the third attempt is applied")
    assert len(attempts) == 3


@pytest.mark.usefixtures("aliases")
def test_what_is_sent_goes_out_with_the_effect(inbox: InboxStage, topic: str) -> None:
    outbox = Outbox()

    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        outbox.send(connection.connection, Message("credited", body=text_of(message)))
        add(connection, message)
        return SUCCESS if text_of(message) == "0" else ConsumeResult.DISCARD

    inbox.produce_numbered(topic, 2)
    with consumer(inbox, topic, listener):
        wait_until(lambda: inbox.count("outbox.inbox") == 2, "both are handled")
    assert points(inbox) == ["0"]
    assert inbox.conn.execute("SELECT body FROM outbox.message").fetchall() == [(b"0",)]


FAILURES_OF_THE_SERVER: dict[str, Callable[[InboxStage, Any], object]] = {
    "the session is ended": lambda inbox, connection: inbox.conn.execute(
        "SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid]
    ),
    "a deadlock": lambda inbox, connection: connection.cursor().execute(
        "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'deadlock_detected'; END $$"
    ),
}


@pytest.mark.usefixtures("aliases")
@pytest.mark.parametrize("failure", FAILURES_OF_THE_SERVER)
def test_a_failure_of_the_server_counts_no_attempt(inbox: InboxStage, topic: str, failure: str) -> None:
    attempts: list[int] = []

    def listener(connection: Any, message: ConsumedMessage) -> ConsumeResult:
        attempts.append(message.reconsume_times)
        if len(attempts) == 1:
            FAILURES_OF_THE_SERVER[failure](inbox, connection)
        return add(connection, message)

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, listener):
        wait_until(lambda: points(inbox) == ["0"], "it is applied")
    assert attempts == [0, 0]


@pytest.mark.usefixtures("aliases")
def test_batches_are_one_transaction(inbox: InboxStage, topic: str) -> None:
    def listener(connection: Any, messages: Any) -> ConsumeResult:
        Point.objects.bulk_create([Point(body=text_of(message)) for message in messages])
        return SUCCESS

    inbox.produce_numbered(topic, 30)
    with consumer(inbox, topic, listener, batch=10):
        wait_until(lambda: inbox.count("point") == 30, "all are applied")


@pytest.mark.usefixtures("aliases")
def test_a_consumer_of_another_database_is_refused(inbox: InboxStage, topic: str) -> None:
    listener = django_listener(add)
    for dsn in (inbox.dsn, lambda: psycopg.connect(inbox.dsn), connections_of("other")):
        with pytest.raises(ConfigurationError, match=r"allowed: dsn=connections_of\('default'\)"):
            inbox.consumer(topic, listener, dsn=dsn)
    with pytest.raises(
        ConfigurationError, match="'missing' is not in DATABASES; allowed: 'default', 'other'"
    ):
        connections_of("missing")
    with pytest.raises(ConfigurationError, match="'missing' is not in DATABASES"):
        django_listener(add, also=["missing"])
    # A wrapper around the listener hides what it requires; the message is then parked, and nothing is written.
    inbox.produce_numbered(topic, 1)
    hidden = partial(listener)
    with inbox.consumer(topic, hidden, delays=DelaySchedule.of([])):
        wait_until(lambda: "connections_of('default')" in dead(inbox), "it is a dead letter")
    assert points(inbox) == []


def test_an_engine_other_than_postgresql_is_refused() -> None:
    with (
        databases(default={"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}),
        pytest.raises(ConfigurationError, match=r"sqlite3.*allowed: django.db.backends.postgresql"),
    ):
        django_listener(add)
