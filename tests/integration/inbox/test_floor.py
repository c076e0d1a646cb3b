"""Messages below the floor of their group: set aside as dead letters, never applied, each once."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from outbox.drivers import psycopg_sync
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, plans
from outbox.inbox.failures import reported
from outbox.inbox.handling import Handled, Handling, handle, park
from outbox.inbox.messages import Delivery, RawRecord, Source, identify
from outbox.inbox.sessions import use_read_committed
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.outbox_command import outbox, succeed
from tests.support.waiting import wait_until

DAY = 86_400.0
OLD = 20 * DAY
"""How long before now the messages were born that are below the floor."""
TOO_OLD = f"state = 'dead' AND fingerprint = '{plans.TOO_OLD}'"
NEVER = DelaySchedule.of([])


def raise_floor(inbox: InboxStage, days_ago: int = 10, group: str | None = None) -> None:
    """Raise the floor of the group of this test, which a consumer has registered."""
    inbox.conn.execute(
        "INSERT INTO outbox.inbox_floor (group_id, born_before) "
        "SELECT id, current_date - %s FROM outbox.consumer_group WHERE name = %s",
        [days_ago, group or inbox.group],
    )


def delivery(number: int, *, age: float = OLD, orderly: bool = False) -> Delivery:
    """A message that was born so many seconds ago."""
    headers = (
        ("outbox-id", f"00000000-0000-4000-8000-{number:012}".encode()),
        ("outbox-born-at", str(int((time.time() - age) * 1000)).encode()),
    )
    record = RawRecord("t", 0, number, b"k", str(number).encode(), headers, 1_700_000_000_000)
    return identify(Source(1, "c/t"), record, orderly=orderly)


@pytest.fixture
def conn(inbox: InboxStage) -> Iterator[Connection]:
    """A connection as a listener's, to a database in which group 1 has a floor."""
    inbox.conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    inbox.conn.execute("INSERT INTO outbox.inbox_floor VALUES (1, current_date - 10)")
    with psycopg.connect(inbox.dsn) as conn:
        use_read_committed(conn)
        yield conn


def test_a_message_below_the_floor_is_a_dead_letter_however_often_it_comes(
    inbox: InboxStage, topic: str
) -> None:
    with inbox.consumer(topic, orderly=True):
        inbox.produce(topic, "k", "first")
        inbox.flush()
        inbox.wait_applied(1)
        raise_floor(inbox)
        number = inbox.produce(topic, "k", "old", born_at=time.time() - OLD)
        inbox.produce(topic, "k", "old", message_id=number, born_at=time.time() - OLD)
        inbox.produce(topic, "k", "new")
        inbox.flush()
        inbox.wait_applied(2)
        wait_until(lambda: inbox.committed(topic) == 4, "all messages are done")
    assert inbox.applied("body") == ["first", "new"]
    assert inbox.count("outbox.inbox_parked") == inbox.count("outbox.inbox_parked", TOO_OLD) == 1
    assert inbox.count("outbox.inbox_held_key") == 0


def test_a_group_without_a_floor_applies_old_messages(inbox: InboxStage, topic: str) -> None:
    with inbox.consumer(topic, lambda *_: ConsumeResult.SUCCESS):
        wait_until(lambda: inbox.count("outbox.consumer_group"), "the group is there")
    raise_floor(inbox)
    for age in (400 * DAY, OLD, 0):
        inbox.produce(topic, "k", str(int(age)), born_at=time.time() - age)
    inbox.flush()
    with inbox.consumer(topic, group=f"{inbox.group}-new"):
        inbox.wait_applied(3)
    assert inbox.count("outbox.inbox_parked") == 0


@pytest.mark.parametrize("orderly", [False, True])
def test_a_delayed_message_that_was_born_below_the_floor_is_applied_once(
    inbox: InboxStage, topic: str, orderly: bool
) -> None:
    with inbox.consumer(topic, orderly=orderly):
        wait_until(lambda: inbox.count("outbox.consumer_group"), "the group is there")
        raise_floor(inbox)
        due = (("outbox-deliver-at", str(int(time.time() * 1000)).encode()),)
        number = inbox.produce(topic, "k", "due", born_at=time.time() - OLD, headers=due)
        inbox.produce(topic, "k", "due", message_id=number, born_at=time.time() - OLD, headers=due)
        inbox.flush()
        wait_until(lambda: inbox.committed(topic) == 2, "both copies are done")
    assert inbox.applied("body") == ["due"]
    assert inbox.count("outbox.inbox_parked") == 0


def test_redrive_by_filter_leaves_out_what_is_too_old_and_by_id_applies_it(
    inbox: InboxStage, topic: str
) -> None:
    with inbox.consumer(topic):
        wait_until(lambda: inbox.count("outbox.consumer_group"), "the group is there")
        raise_floor(inbox)
        number = inbox.produce(topic, "k", "old", born_at=time.time() - OLD)
        inbox.flush()
        wait_until(lambda: inbox.count("outbox.inbox_parked", TOO_OLD), "it is set aside")
        [letter] = json.loads(succeed("dlq", "ls", "--json", "--dsn", inbox.dsn).out)
        outbox("dlq", "redrive", "--all", "--yes", "--dsn", inbox.dsn)
        assert inbox.count("outbox.inbox_parked", TOO_OLD) == 1
        succeed("dlq", "redrive", str(letter["id"]), "--dsn", inbox.dsn)
        inbox.wait_applied(1)
        # Its row of the inbox refuses it from now on, as that of any other message.
        inbox.produce(topic, "k", "old", message_id=number, born_at=time.time() - OLD)
        inbox.flush()
        wait_until(lambda: inbox.committed(topic) == 2, "it is done")
    assert inbox.applied("body") == ["old"]
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_row_that_is_still_there_refuses_a_message_below_the_floor(
    inbox: InboxStage, conn: Connection
) -> None:
    how = Handling(1, apply, NEVER)
    inbox.conn.execute("DELETE FROM outbox.inbox_floor")
    assert handle(conn, how, delivery(1)) is Handled.APPLIED
    inbox.conn.execute("INSERT INTO outbox.inbox_floor VALUES (1, current_date - 10)")
    assert handle(conn, how, delivery(1)) is Handled.REFUSED
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_message_of_the_day_of_the_floor_is_applied(inbox: InboxStage, conn: Connection) -> None:
    inbox.conn.execute("UPDATE outbox.inbox_floor SET born_before = (now() AT TIME ZONE 'UTC')::date - 20")
    assert handle(conn, Handling(1, apply, NEVER), delivery(1, age=20 * DAY)) is Handled.APPLIED
    assert handle(conn, Handling(1, apply, NEVER), delivery(2, age=21 * DAY)) is Handled.DEAD


def test_a_message_without_a_day_is_applied_above_any_floor(inbox: InboxStage, conn: Connection) -> None:
    record = RawRecord(
        "t", 0, 1, b"k", b"1", (("outbox-id", b"00000000-0000-4000-8000-000000000001"),), 1_700_000_000_000
    )
    message = identify(Source(1, "c/t"), record, orderly=False)
    assert handle(conn, Handling(1, apply, NEVER), message) is Handled.APPLIED
    assert handle(conn, Handling(1, apply, NEVER), message) is Handled.REFUSED


def test_a_failed_message_whose_floor_was_raised_meanwhile_is_a_dead_letter(
    inbox: InboxStage, conn: Connection
) -> None:
    """Between the rollback of the listener and the parking. Dropped without a word, it would be lost."""
    assert park(conn, Handling(1, apply, NEVER), delivery(1), reported("it failed"), None) is Handled.DEAD
    [(error, attempts)] = inbox.conn.execute(
        f"SELECT error, attempts FROM outbox.inbox_parked WHERE {TOO_OLD}".encode()
    ).fetchall()
    assert error.endswith("it failed")
    assert attempts == 1


def test_a_zombie_that_commits_below_the_floor_leaves_no_dead_letter(
    inbox: InboxStage, conn: Connection
) -> None:
    """The zombie took the message over before the floor was raised; the new owner waits for its transaction."""
    inbox.conn.execute("DELETE FROM outbox.inbox_floor")
    began, goes_on = threading.Event(), threading.Event()
    results: dict[str, Handled] = {}

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        began.set()
        goes_on.wait(30)
        return apply(conn, message)

    def run(who: str, listener_: object) -> None:
        with psycopg.connect(inbox.dsn, application_name="outbox consumer") as other:
            use_read_committed(other)
            results[who] = handle(other, Handling(1, listener_, NEVER), delivery(1))  # type: ignore[arg-type]

    zombie = threading.Thread(target=run, args=["zombie", listener])
    zombie.start()
    assert began.wait(30)
    inbox.conn.execute("INSERT INTO outbox.inbox_floor VALUES (1, current_date - 10)")
    owner = threading.Thread(target=run, args=["owner", apply])
    owner.start()
    waiting = "datname = current_database() AND wait_event = 'transactionid'"
    wait_until(lambda: inbox.count("pg_stat_activity", waiting), "the owner waits for the zombie")
    goes_on.set()
    zombie.join(30)
    owner.join(30)
    assert results == {"zombie": Handled.APPLIED, "owner": Handled.REFUSED}
    assert inbox.count("applied") == 1
    assert inbox.count("outbox.inbox_parked") == 0


def test_a_discarded_message_below_a_floor_is_done(inbox: InboxStage, conn: Connection) -> None:
    """Its listener ran before the floor was raised, and wants no effect."""

    def listener(given: Connection, message: ConsumedMessage) -> ConsumeResult:
        inbox.conn.execute("INSERT INTO outbox.inbox_floor VALUES (1, current_date - 10)")
        return ConsumeResult.DISCARD

    inbox.conn.execute("DELETE FROM outbox.inbox_floor")
    assert handle(conn, Handling(1, listener, NEVER), delivery(1)) is Handled.DISCARDED
    assert inbox.count("outbox.inbox") == 1
    assert psycopg_sync.run(conn, plans.next_due(1)) is None
