"""Days of the inbox are dropped beside consumers: kills, long listeners, groups that begin, and locks."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from outbox.drivers import psycopg_sync
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, plans
from outbox.inbox.handling import Handled, Handling, handle
from outbox.inbox.messages import Delivery, RawRecord, Source, identify
from outbox.inbox.sessions import use_read_committed
from outbox_relay.operations import inbox_drop
from outbox_relay.operations.inbox_days import DayRules
from tests.support.inbox_days import born, has_old_day, old_day, produce_old, run
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.publications import value
from tests.support.waiting import wait_until

NEVER = DelaySchedule.of([])
NO_KAFKA = ("--without-kafka", "--yes")


def delivery(number: int, *, days_ago: int = 20) -> Delivery:
    """A message that was born so many days ago."""
    headers = (
        ("outbox-id", f"00000000-0000-4000-8000-{number:012}".encode()),
        ("outbox-born-at", str(int(born(days_ago) * 1000)).encode()),
    )
    record = RawRecord("t", 0, number, b"k", str(number).encode(), headers, 1_700_000_000_000)
    return identify(Source(1, "c/t"), record, orderly=False)


@contextmanager
def listening(inbox: InboxStage) -> Iterator[Connection]:
    """A connection as a listener's."""
    with psycopg.connect(inbox.dsn, application_name="outbox consumer") as conn:
        use_read_committed(conn)
        yield conn


@pytest.fixture
def rows(inbox: InboxStage) -> list[Delivery]:
    """Messages of a day that group 1 has applied, in a partition of their own."""
    inbox.conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    made = [delivery(number) for number in range(3)]
    inbox.conn.execute("SELECT outbox.ensure_inbox_partition(%s)", [made[0].born_on])
    with listening(inbox) as conn:
        for each in made:
            assert handle(conn, Handling(1, apply, NEVER), each) is Handled.APPLIED
    return made


HERE = "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
"""Locks in this database: the server has those of other tests as well."""


def waits_for_a_lock(inbox: InboxStage, mode: str) -> bool:
    """Whether a session waits for a lock on a table."""
    return (
        inbox.count("pg_locks", f"NOT granted AND locktype = 'relation' AND mode = '{mode}' AND {HERE}") > 0
    )


def floor_is_raised(inbox: InboxStage) -> bool:
    """Whether a drop has raised the floor."""
    return inbox.count("outbox.inbox_floor") > 0


@pytest.mark.parametrize("prepared", [False, True])
def test_a_take_that_waits_for_the_inbox_reads_the_floor_after_it(
    inbox: InboxStage, rows: list[Delivery], prepared: bool
) -> None:
    """The drop rests on it: PostgreSQL takes the snapshot after it has locked the inbox, prepared or not."""
    results: list[plans.Taken] = []
    with listening(inbox) as conn, psycopg.connect(inbox.dsn) as locker:
        for number in range(8 if prepared else 0):
            psycopg_sync.run(conn, plans.take(1, delivery(100 + number)))
        conn.rollback()
        locker.execute("LOCK TABLE ONLY outbox.inbox IN ACCESS EXCLUSIVE MODE")
        thread = threading.Thread(
            target=lambda: results.append(psycopg_sync.run(conn, plans.take(1, rows[0])))
        )
        thread.start()
        wait_until(lambda: waits_for_a_lock(inbox, "RowExclusiveLock"), "the take waits")
        locker.execute("INSERT INTO outbox.inbox_floor VALUES (1, current_date)")
        locker.execute("DELETE FROM outbox.inbox")
        locker.commit()
        thread.join(30)
        assert [(taken.is_new, taken.is_too_old) for taken in results] == [(True, True)]


def test_the_drop_waits_for_a_take_that_read_the_floor_before(
    inbox: InboxStage, rows: list[Delivery]
) -> None:
    """Its message is applied, and with its row, that was not there at the first decision, the day stays."""
    inbox.conn.execute("UPDATE outbox.inbox SET handled_at = now() - interval '8 days'")
    with listening(inbox) as conn:
        taken = psycopg_sync.run(conn, plans.take(1, delivery(7)))
        assert (taken.is_new, taken.is_too_old) == (True, False)
        found: list[str] = []
        thread = threading.Thread(
            target=lambda: found.append(old_day(run(inbox, "drop", *NO_KAFKA, older_than="7d"))["outcome"])
        )
        thread.start()
        wait_until(lambda: floor_is_raised(inbox), "the floor is raised")
        apply(conn, delivery(7).message)
        conn.commit()
        thread.join(60)
    assert found == ["kept"]
    assert inbox.count("outbox.inbox") == 4
    with listening(inbox) as conn:
        # Refused by their rows, although they are below the floor; what has no row is set aside.
        results = [
            handle(conn, Handling(1, apply, NEVER), each) for each in (*rows, delivery(7), delivery(8))
        ]
    assert results == [Handled.REFUSED] * 4 + [Handled.DEAD]


def test_a_transaction_that_does_not_end_leaves_the_day_as_it_is(
    inbox: InboxStage, rows: list[Delivery]
) -> None:
    with listening(inbox) as conn:
        psycopg_sync.run(conn, plans.take(1, delivery(7, days_ago=0)))
        ran = run(inbox, "drop", *NO_KAFKA, "--wait", "300ms")
        assert (ran.code, old_day(ran)["reasons"][0]["name"]) == (1, "busy")
        assert "outbox consumer" in old_day(ran)["reasons"][0]["detail"]
        conn.rollback()
    assert inbox.count("outbox.inbox") == 3
    assert old_day(run(inbox, "drop", *NO_KAFKA))["outcome"] == "dropped"


def test_a_group_that_begins_to_write_to_the_day_keeps_it(inbox: InboxStage, rows: list[Delivery]) -> None:
    """It has no floor, so its messages are applied; without its rows they could be applied twice."""
    with (
        psycopg.connect(inbox.dsn, autocommit=True) as conn,
        listening(inbox) as new,
        listening(inbox) as other,
    ):
        psycopg_sync.run(other, plans.take(1, delivery(7, days_ago=0)))
        dropping = inbox_drop.InboxDropping(
            conn, DayRules(conn, age=timedelta(0), kafka=None, by_age=True), wait=60
        )
        found: list[inbox_drop.DayResult] = []
        thread = threading.Thread(target=lambda: found.extend(dropping.drop()))
        thread.start()
        wait_until(lambda: floor_is_raised(inbox), "the floor is raised")
        assert handle(new, Handling(2, apply, NEVER), rows[0]) is Handled.APPLIED
        other.rollback()
        thread.join(60)
    [result] = [each for each in found if each.decision.day.day == rows[0].born_on]
    assert (result.outcome, result.decision.reasons[0].name) == ("refused", "busy")
    assert inbox.count("outbox.inbox") == 4
    assert old_day(run(inbox, "drop", *NO_KAFKA))["outcome"] == "dropped"


def test_a_drop_killed_after_it_raised_the_floor_is_finished_by_the_next(
    inbox: InboxStage, rows: list[Delivery]
) -> None:
    with listening(inbox) as conn:
        psycopg_sync.run(conn, plans.take(1, delivery(7, days_ago=0)))
        arguments = ["inbox", "drop", "--older-than", "0s", *NO_KAFKA, "--dsn", inbox.dsn]
        process = subprocess.Popen([sys.executable, "-m", "outbox_relay", *arguments])
        wait_until(lambda: floor_is_raised(inbox), "the floor is raised")
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(30) == -signal.SIGKILL
        conn.rollback()
        assert [handle(conn, Handling(1, apply, NEVER), each) for each in rows] == [Handled.REFUSED] * 3
    wait_until(
        lambda: not inbox.count("outbox.turn t", "t.pid IN (SELECT a.pid FROM pg_stat_activity a)"),
        "its session has ended",
    )
    assert old_day(run(inbox, "drop", *NO_KAFKA))["outcome"] == "dropped"
    with listening(inbox) as conn:
        assert [handle(conn, Handling(1, apply, NEVER), each) for each in rows] == [Handled.DEAD] * 3
    assert inbox.count("applied") == 3


def before(monkeypatch: pytest.MonkeyPatch, step: str, act: Callable[[], object]) -> None:
    """Do something once, before this step of a drop."""
    original, acts = getattr(inbox_drop.InboxDropping, step), [act]

    def patched(self: inbox_drop.InboxDropping, *given: object) -> object:
        if acts:
            acts.pop()()
        return original(self, *given)

    monkeypatch.setattr(inbox_drop.InboxDropping, step, patched)


def test_a_message_that_is_set_aside_before_the_lock_keeps_the_day(
    inbox: InboxStage, rows: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(inbox) as conn:
        before(monkeypatch, "_empty", lambda: handle(conn, Handling(1, apply, NEVER), delivery(7)))
        ran = run(inbox, "drop", *NO_KAFKA)
    assert (ran.code, old_day(ran)["reasons"][0]["name"]) == (1, "busy")
    assert inbox.count("outbox.inbox") == 4
    assert inbox.count("outbox.inbox_parked") == 1


def test_a_message_that_is_applied_after_the_day_was_emptied_keeps_its_table(
    inbox: InboxStage, rows: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group has no floor, so its row alone keeps it from being applied again."""
    with listening(inbox) as conn:
        new = Handling(2, apply, NEVER)
        before(monkeypatch, "_remove", lambda: handle(conn, new, rows[0]))
        assert old_day(run(inbox, "drop", *NO_KAFKA))["outcome"] == "emptied"
        assert handle(conn, new, rows[0]) is Handled.REFUSED
    assert has_old_day(inbox)
    assert inbox.count("applied") == 4


def test_listeners_that_run_all_the_time_keep_the_empty_table_only(
    inbox: InboxStage, rows: list[Delivery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that began after the floor was raised is not waited for, unless the table itself is to go."""
    with listening(inbox) as conn:
        take = plans.take(1, delivery(7, days_ago=0))
        before(monkeypatch, "_empty", lambda: psycopg_sync.run(conn, take))
        ran = run(inbox, "drop", *NO_KAFKA, "--wait", "1s")
        assert (ran.code, old_day(ran)["outcome"], old_day(ran)["rows"]) == (0, "emptied", 3)
        conn.commit()
    assert has_old_day(inbox)
    assert inbox.count("outbox.inbox") == 1
    assert old_day(run(inbox, "drop", *NO_KAFKA))["outcome"] == "dropped"
    assert not has_old_day(inbox)


def test_only_one_drop_is_at_work(inbox: InboxStage) -> None:
    with psycopg.connect(inbox.dsn, autocommit=True) as conn:
        with inbox_drop.only_drop(conn):
            ran = run(inbox, "drop", *NO_KAFKA)
        assert run(inbox, "drop", *NO_KAFKA).code == 0
    assert (ran.code, "another `outbox inbox drop` is at work" in ran.err) == (1, True)


@pytest.mark.parametrize("times", [1, 6])
def test_a_message_whose_day_is_dropped_at_this_moment_is_taken_at_once(
    inbox: InboxStage, topic: str, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    """PostgreSQL refuses such a row now and then; a trigger refuses it in the same words here."""
    inbox.conn.execute(f"""
        CREATE SEQUENCE refusals;
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('refusals') % 2 = 1 AND currval('refusals') < {2 * times} THEN
                RAISE 'new row for relation "inbox_default" violates partition constraint'
                    USING ERRCODE = 'check_violation', SCHEMA = 'outbox', TABLE = 'inbox_default';
            END IF;
            RETURN NEW;
        END $$;
        CREATE TRIGGER refuse BEFORE INSERT ON outbox.inbox FOR EACH ROW EXECUTE FUNCTION refuse();
        GRANT USAGE ON SEQUENCE refusals TO PUBLIC""")
    with inbox.consumer(topic, apply, workers=1):
        sent = [str(delivery(number).message.message_id) for number in range(6)]
        for number, message_id in enumerate(sent):
            inbox.produce(topic, f"k{number}", str(number), message_id=message_id, born_at=born(20))
        inbox.flush()
        wait_until(lambda: set(sent) <= set(inbox.applied()), "they are applied")
    assert int(value(inbox.conn, "SELECT last_value FROM refusals")) > 2 * times - 1
    assert inbox.count("outbox.inbox_parked") == 0
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_consumers_under_load_apply_each_message_once_while_days_are_dropped(
    inbox: InboxStage, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The messages of each day come again after it was dropped, between new ones of other keys."""

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        threading.Event().wait(0.002)
        return apply(conn, message)

    turns, several = 5, 20
    outcomes = []
    with inbox.consumer(topic, listener), inbox.consumer(topic, listener):
        for turn in range(turns):
            days_ago = 30 - turn
            old = produce_old(inbox, topic, several, days_ago=days_ago)
            wait_until(lambda old=old: set(old) <= set(inbox.applied()), "the old ones are applied")  # type: ignore[misc]
            inbox.produce_numbered(topic, 500, start=500 * turn)
            ran = run(inbox, "drop", *NO_KAFKA)
            outcomes.append(old_day(ran, days_ago)["outcome"])
            for number, message_id in enumerate(old):
                inbox.produce(topic, "old", str(number), message_id=message_id, born_at=born(days_ago))
            inbox.flush()
            letters = several * (turn + 1)
            wait_until(lambda n=letters: inbox.count("outbox.inbox_parked") == n, "they are set aside")  # type: ignore[misc]
        inbox.wait_applied(turns * (500 + several))
    assert outcomes == ["dropped"] * turns
    assert len(inbox.applied()) == len(set(inbox.applied())) == turns * (500 + several)
    assert inbox.count("outbox.inbox_parked", f"fingerprint <> '{plans.TOO_OLD}'") == 0
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
