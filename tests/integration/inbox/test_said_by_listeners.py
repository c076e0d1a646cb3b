"""A listener states what becomes of a message that it could not apply: no other try, or one at a time of its own.

A test with a consumer has an innocent key, and a message of it that fails in the ordinary way and is applied then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from outbox.errors import ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, ReconsumeLater
from outbox.inbox.handling import Handling, ListenerFailedError, handle, handle_due, park
from outbox.inbox.results import Consumed
from outbox.inbox.sessions import use_read_committed
from tests.integration.inbox.test_floor import delivery
from tests.integration.inbox.test_retries import Watched, park_one
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.waiting import wait_until

pytestmark = pytest.mark.feature("H-61")


@pytest.fixture
def conn(inbox: InboxStage) -> Iterator[Connection]:
    """A connection as a listener's."""
    inbox.conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    with psycopg.connect(inbox.dsn) as conn:
        use_read_committed(conn)
        yield conn


FORMS: Mapping[str, Mapping[str, Any]] = {
    "concurrent": {},
    "orderly": {"orderly": True},
    "batch": {"batch": 5, "linger": 0.2},
    "orderly batch": {"orderly": True, "batch": 5, "linger": 0.2},
}
NUMBERS = 8
HEAD = b"2"
"""Of the key k0, whose later messages are 4 and 6."""
INNOCENT = b"3"


class NoSuchCustomerError(LookupError):
    """What the application raises."""


def raises(_: ConsumedMessage) -> Consumed:
    """End with an error."""
    raise NoSuchCustomerError("17")


def returns_dead(_: ConsumedMessage) -> Consumed:
    """Give the message up."""
    return ConsumeResult.DEAD


def later(message: ConsumedMessage) -> Consumed:
    """Try again in an hour."""
    return ReconsumeLater("1h")


def saying(said: Callable[[ConsumedMessage], Consumed], *, is_batch: bool) -> Callable[..., Any]:
    """Make a listener that writes each message, and then states this of one, and fails once with an innocent one."""

    def single(conn: Connection, message: ConsumedMessage) -> Consumed:
        apply(conn, message)
        if message.body == HEAD:
            return said(message)
        if message.body == INNOCENT and not message.reconsume_times:
            raise ValueError("once")
        return ConsumeResult.SUCCESS

    def batch(conn: Connection, messages: list[ConsumedMessage]) -> list[Consumed]:
        return [single(conn, message) for message in messages]

    return batch if is_batch else single


def parked(inbox: InboxStage) -> list[tuple[Any, ...]]:
    """Return state, attempts and failure of the message that was not applied, and seconds until its next try."""
    return inbox.conn.execute(
        "SELECT state, attempts, split_part(fingerprint, ' at ', 1), extract(epoch FROM due_at - failed_at)::float8 "
        "FROM outbox.inbox_parked WHERE state <> 'waiting'"
    ).fetchall()


def consume(inbox: InboxStage, topic: str, form: str, said: Callable[..., Consumed]) -> None:
    """Consume until nothing but the message, and what waits behind it, is left."""
    options = FORMS[form]
    inbox.produce_numbered(topic, NUMBERS, keys=2)
    waiting = 2 if "orderly" in options else 0
    listener = saying(said, is_batch="batch" in options)
    delays = DelaySchedule.of([0.05] * 5, never_retry=[NoSuchCustomerError])
    with inbox.consumer(topic, listener, delays=delays, **options):
        inbox.wait_applied(NUMBERS - 1 - waiting)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 1 + waiting, "it is parked alone")
    behind = [] if waiting else [4, 6]
    assert {key: sorted(found) for key, found in inbox.by_key().items()} == {
        "k0": [0, *behind],
        "k1": [1, 3, 5, 7],
    }
    assert inbox.count("outbox.inbox_held_key") == bool(waiting)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("said", "failure"),
    [(raises, "NoSuchCustomerError"), (returns_dead, "the listener returned DEAD")],
    ids=["exception", "result"],
)
def test_a_message_without_another_try_is_dead_at_once(
    inbox: InboxStage, topic: str, form: str, said: Callable[..., Consumed], failure: str
) -> None:
    consume(inbox, topic, form, said)
    assert parked(inbox) == [("dead", 1, failure, None)]


@pytest.mark.parametrize("form", FORMS)
def test_a_listener_chooses_when_its_message_is_tried_again(inbox: InboxStage, topic: str, form: str) -> None:
    consume(inbox, topic, form, later)
    [(state, attempts, failure, pause)] = parked(inbox)
    assert (state, attempts, failure) == ("retry", 1, "the listener returned ReconsumeLater")
    assert pause == pytest.approx(3600, abs=60)


def test_a_pause_that_is_not_allowed_is_the_error_of_its_message(inbox: InboxStage, topic: str) -> None:
    consume(inbox, topic, "concurrent", lambda _: ReconsumeLater(-1))
    wait_until(lambda: parked(inbox)[0][0] == "retry", "it waits for its next try by the schedule")
    [(error,)] = inbox.conn.execute("SELECT error FROM outbox.inbox_parked").fetchall()
    assert "delay: -1; allowed: 0 to 315360000 seconds (ten years), or a text such as '10s'" in error


def test_a_dead_head_whose_key_is_locked_waits_and_delays_no_other_key(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, NUMBERS, keys=2)
    listener = saying(returns_dead, is_batch=False)
    with inbox.consumer(topic, listener, orderly=True), psycopg.connect(inbox.dsn) as other:
        inbox.wait_applied(5)
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 3, "the key is held")
        [number] = [
            row[0] for row in inbox.conn.execute("SELECT id FROM outbox.inbox_parked WHERE state = 'dead'")
        ]
        other.execute("SELECT FROM outbox.inbox_held_key FOR UPDATE")
        inbox.produce_numbered(topic, NUMBERS, keys=2, start=NUMBERS)
        inbox.conn.execute(
            "UPDATE outbox.inbox_parked SET state = 'retry', due_at = now() WHERE id = %s", [number]
        )
        wait_until(lambda: [row[:2] for row in parked(inbox)] == [("dead", 2)], "it is dead again")
        inbox.wait_applied(9)
        assert inbox.count("outbox.inbox_parked") == 3, "what comes behind it waits for the lock"
        other.rollback()
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 7, "and is parked then")
    assert inbox.by_key() == {"k0": [0], "k1": [*range(1, 16, 2)]}


def test_what_a_listener_states_holds_whatever_isolation_the_database_sets(
    inbox: InboxStage, topic: str
) -> None:
    database = inbox.conn.info.dbname
    inbox.conn.execute(
        f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'".encode()
    )
    consume(inbox, topic, "orderly", returns_dead)
    assert [row[:2] for row in parked(inbox)] == [("dead", 1)]


@pytest.mark.parametrize("said", [raises, returns_dead])
def test_a_retry_without_another_try_is_dead_and_counted(
    inbox: InboxStage, topic: str, said: Callable[..., Consumed]
) -> None:
    group = park_one(inbox, topic)
    how = Handling(
        group,
        lambda _, message: said(message),
        DelaySchedule.of([0.0] * 9, never_retry=[NoSuchCustomerError]),
    )
    with psycopg.connect(inbox.dsn) as conn:
        assert handle_due(conn, how) is not None
        assert [row[:2] for row in parked(inbox)] == [("dead", 2)]
        assert handle_due(conn, how) is None


def test_a_session_that_is_lost_before_a_retry_is_dead_leaves_it_due(inbox: InboxStage, topic: str) -> None:
    group = park_one(inbox, topic)
    dead = Handling(group, lambda *_: ConsumeResult.DEAD, DelaySchedule.of([0.0] * 9))
    with psycopg.connect(inbox.dsn) as conn:
        backend = conn.info.backend_pid
        ending = Watched(
            (0.0,), between=lambda: inbox.conn.execute("SELECT pg_terminate_backend(%s)", [backend])
        )
        with pytest.raises(psycopg.OperationalError):
            handle_due(conn, replace(dead, delays=ending))
    assert [row[:2] for row in parked(inbox)] == [("retry", 1)]
    with psycopg.connect(inbox.dsn) as conn:
        assert handle_due(conn, dead) is not None
    assert [row[:2] for row in parked(inbox)] == [("dead", 2)]


def test_an_error_of_the_commit_is_never_retried_if_its_class_is_named(conn: Connection) -> None:
    conn.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    conn.commit()

    def twice(conn: Connection, _: ConsumedMessage) -> Consumed:
        conn.execute("INSERT INTO once VALUES (1), (1)")
        return ConsumeResult.SUCCESS

    for errors, state in (
        ([psycopg.errors.UniqueViolation], "dead"),
        ([psycopg.errors.CheckViolation], "retry"),
    ):
        how = Handling(1, twice, DelaySchedule.of(["1h"], never_retry=errors))
        message = delivery(1 if state == "dead" else 2, age=0)
        with pytest.raises(ListenerFailedError) as failed:
            handle(conn, how, message)
        park(conn, how, message, failed.value.failure, None)
        rows = conn.execute("SELECT state FROM outbox.inbox_parked ORDER BY id DESC LIMIT 1").fetchall()
        assert rows == [(state,)]
        conn.commit()


def test_what_a_listener_states_after_it_rolled_back_holds(conn: Connection) -> None:
    def rolls_back(conn: Connection, message: ConsumedMessage) -> Consumed:
        with suppress(ListenerError):
            conn.execute("ROLLBACK")
        return raises(message)

    how = Handling(1, rolls_back, DelaySchedule.of(["1h"], never_retry=[NoSuchCustomerError]))
    with pytest.raises(ListenerFailedError) as failed:
        handle(conn, how, delivery(1, age=0))
    park(conn, how, delivery(1, age=0), failed.value.failure, None)
    [(state, error)] = conn.execute("SELECT state, error FROM outbox.inbox_parked").fetchall()
    assert state == "dead"
    assert error.startswith("the listener ended the transaction that it was given, and rolled it back")
    assert "NoSuchCustomerError: 17" in error
