"""`outbox tx explain` and `check`: a half message's life as it was, and what really happens next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from outbox import Outbox
from outbox.checking import Answer, GroupChecker, LocalTransactionState
from outbox.records import MessageView
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, decide, insert
from tests.support.publications import own_lanes, positions, record, snapshot, value


class Scripted:
    """An asker that answers by the script, or that nobody is registered."""

    def __init__(self, *answers: str, missing: str | None = None) -> None:
        self._answers, self._missing = list(answers), missing

    def missing(self, view: MessageView) -> str | None:
        return self._missing

    def ask(self, view: MessageView, deadline: float) -> Answer:
        answer = LocalTransactionState(self._answers.pop(0))
        return Answer(answer, f"said {answer.lower()}")


@pytest.fixture
def check_all(database: str) -> Iterator[Callable[..., None]]:
    """Runs one turn of the group's checker."""
    running: list[GroupChecker] = []

    def turn(*answers: str, missing: str | None = None) -> None:
        checker = GroupChecker(database, "shop", Scripted(*answers, missing=missing), name="checker:shop@a:1")
        running.append(checker)
        checker.run_once()

    yield turn
    for checker in running:
        checker.stop()


def half(conn: Connection, **columns: Any) -> str:
    return insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="shop", **columns)


def explain(database: str, message_id: str) -> str:
    return succeed("tx", "explain", message_id, OUTBOX_DSN=database).out


def in_order(text: str, *parts: str) -> bool:
    places = [text.index(part) for part in parts]
    return places == sorted(places)


@pytest.mark.feature("S-27", "S-45")
def test_the_whole_life_is_told_in_order(
    database: str, conn: Connection, check_all: Callable[..., None]
) -> None:
    own_lanes(conn)
    conn.execute("SET outbox.actor = 'shop-7'")
    message_id = half(conn, checker="payment", biz_type="payment", biz_id="p-7", check_after="0")
    check_all("UNKNOWN")
    succeed("tx", "check", message_id, OUTBOX_DSN=database)
    check_all("UNKNOWN")
    told = explain(database, message_id)
    assert in_order(
        told,
        "about payment p-7 for topic orders: UNKNOWN, undecided",
        "born UNKNOWN, a half message of group 'shop', by shop-7",
        "check 1 by checker:shop@a:1",
        "answered UNKNOWN: said unknown",
        "check 2 by checker:shop@a:1",
        "next",
        "will be asked again at 20",
        "check 3 of 15, by the checker in an application of group 'shop', which must have registered checker 'payment'",
        "without a decision it is rolled back after check 15",
    )
    succeed("tx", "commit", message_id, "--reason", "see invoice 17", OUTBOX_DSN=database)
    assert "next  is published as soon as the relay gets to it" in explain(database, message_id)
    record(conn, positions(conn), seen=snapshot(conn), batch=1, partition=3, offset=40)
    told = explain(database, message_id)
    assert in_order(
        told,
        "PUBLISHED, published",
        "check 2 by",
        "decided COMMITTED by operator:",
        ": see invoice 17",
        "published to orders, partition 3, offset 40",
    )
    assert "next" not in told
    document = succeed("tx", "explain", message_id, "--json", OUTBOX_DSN=database).json
    assert [event["kind"] for event in document["events"]] == ["transition", "check", "check", "transition"]
    assert (document["status"], document["partition"], document["offset"]) == ("PUBLISHED", 3, 40)
    assert len(document["past"]) == 5
    assert document["next"] == []


@pytest.mark.feature("S-45")
def test_a_check_made_due_is_asked_at_the_checkers_next_turn_and_decides(
    database: str, conn: Connection, check_all: Callable[..., None]
) -> None:
    message_id = half(conn, check_after="1 day")
    check_all()
    ran = succeed("tx", "check", message_id, OUTBOX_DSN=database)
    assert "is due: asked next by the checker in an application of group 'shop'" in ran.out
    check_all("COMMIT")
    assert value(conn, "SELECT state FROM outbox.message") == "COMMITTED"
    told = explain(database, message_id)
    assert in_order(told, "answered COMMIT", "decided COMMITTED by checker:shop@a:1")


def test_a_check_made_due_comes_before_its_time_and_never_later(database: str, conn: Connection) -> None:
    message_id = half(conn)
    succeed("tx", "check", message_id, OUTBOX_DSN=database)
    assert value(conn, "SELECT due_at <= clock_timestamp() FROM outbox.pending_check") is True
    conn.execute("UPDATE outbox.pending_check SET due_at = '2020-01-01', checks = 3")
    succeed("tx", "check", message_id, OUTBOX_DSN=database)
    row = conn.execute("SELECT due_at = '2020-01-01', checks FROM outbox.pending_check").fetchone()
    assert row == (True, 3)


def test_one_that_is_being_asked_about_keeps_its_claim(database: str, conn: Connection) -> None:
    message_id = half(conn)
    conn.execute(
        "INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at, asked_by) "
        "SELECT id, message_id, producer_group, '2100-01-01', 'checker:shop@b:2' FROM outbox.message"
    )
    ran = succeed("tx", "check", message_id, OUTBOX_DSN=database)
    assert "is asked about at this moment by checker:shop@b:2" in ran.out
    assert value(conn, "SELECT due_at = '2100-01-01' FROM outbox.pending_check") is True
    assert "check 1 of 15 is being asked at this moment by checker:shop@b:2" in explain(database, message_id)


@pytest.mark.parametrize("state", ["COMMITTED", "ROLLED_BACK", "EXHAUSTED"])
def test_what_is_decided_or_exhausted_is_not_asked_about(database: str, conn: Connection, state: str) -> None:
    message_id, other = half(conn), half(conn)
    decide(conn, message_id, state)
    ran = outbox("tx", "check", message_id, other, OUTBOX_DSN=database)
    assert ran.code == 1
    assert f"is {state}" in ran.err
    assert ("outbox tx commit" in ran.err) is (state == "EXHAUSTED")
    assert value(conn, "SELECT message_id::text FROM outbox.pending_check") == other


@pytest.mark.feature("S-42")
def test_a_running_local_transaction_is_named(
    database: str, conn: Connection, check_all: Callable[..., None]
) -> None:
    message_id = half(conn, check_after="0")
    with psycopg.connect(database, application_name="shop-7") as local:
        Outbox().join(local, message_id)
        check_all()
        for inner in range(2):
            with local.transaction():  # a savepoint: the row then has several lockers
                Outbox().join(local, message_id)
                told = explain(database, message_id)
                assert "is locked by a running local transaction since 20" in told, inner
                assert f"pid {local.info.backend_pid}, shop-7" in told
                assert "will be asked at 20" in told
        found = succeed("tx", "show", message_id, "--json", OUTBOX_DSN=database).json
        assert found["locked_by"]["pid"] == local.info.backend_pid
        assert found["checks"] == 0
    assert "is locked" not in explain(database, message_id)


@pytest.mark.feature("S-49")
def test_a_checker_that_nobody_registered_is_named_with_its_alarm(
    database: str, conn: Connection, check_all: Callable[..., None]
) -> None:
    message_id = half(conn, checker="payment", check_after="0")
    check_all(missing="no checker is registered under the name 'payment'")
    told = explain(database, message_id)
    assert "no listener is registered for checker 'payment': alarm since 20" in told
    assert "check 1 of 15" in told
    assert "alarm no_checker" in succeed("tx", "check", message_id, OUTBOX_DSN=database).out
    shown = succeed("status", OUTBOX_DSN=database).out
    assert "alarm no_checker, group shop" in shown
    found = succeed("status", "--json", OUTBOX_DSN=database).json
    assert [(one["producer_group"], one["kind"]) for one in found["alarms"]] == [("shop", "no_checker")]


@pytest.mark.feature("S-51", "S-52")
def test_one_whose_checks_are_used_up_is_left_to_the_operator_with_both_commands(
    database: str, conn: Connection, check_all: Callable[..., None]
) -> None:
    succeed("group", "set", "shop", "--policy", "EXHAUSTED", "--max-checks", "1", OUTBOX_DSN=database)
    message_id = half(conn, check_after="0")
    check_all("UNKNOWN")
    check_all()
    told = explain(database, message_id)
    number = value(conn, "SELECT id FROM outbox.message")
    assert in_order(
        told,
        "EXHAUSTED, left to an operator",
        "check 1 by",
        "EXHAUSTED, left to an operator, by checker:shop@a:1",
        "no check follows",
        f"outbox tx commit {number} --reason TEXT",
        f"outbox tx rollback {number} --reason TEXT",
    )
    assert "outbox tx ls --state EXHAUSTED" in succeed("status", OUTBOX_DSN=database).out
    (found,) = succeed("tx", "ls", "--json", OUTBOX_DSN=database).json
    assert (found["state"], found["checks"], found["last_answer"]) == ("EXHAUSTED", 1, "UNKNOWN")


def test_what_no_checker_comes_to_says_whose_turn_it_is(database: str, conn: Connection) -> None:
    message_id = half(conn, born_at="2026-01-01 10:00 UTC")
    conn.execute("INSERT INTO outbox.producer_group (name, max_age) VALUES ('shop', '3650 days')")
    told = explain(database, message_id)
    assert "check 1 of 15 is overdue by" in told
    assert "it is up to the checker in an application of group 'shop'; none has come to it" in told


def test_a_committed_delayed_message_says_when_it_is_published(database: str, conn: Connection) -> None:
    message_id = half(conn, deliver_at="2100-01-01 00:00 UTC")
    ran = succeed("tx", "commit", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert "the relay publishes it at " in ran.out
    assert "next  is published at " in explain(database, message_id)
    assert "outbox message cancel" in explain(database, message_id)
