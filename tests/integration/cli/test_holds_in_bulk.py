"""`outbox holds` chooses by topic, error and age, and leaves all other holds as they are."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from outbox_relay.operations.dead_letters import act_on_all
from outbox_relay.operations.holds import HoldFilter
from tests.support.held_keys import hold_key, hold_topic, write_key
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect_as_service
from tests.support.publications import own_lanes, value

REQUESTED = "SELECT head FROM outbox.parked_key WHERE requested_at IS NOT NULL ORDER BY head"
STATES = "SELECT id FROM outbox.message WHERE state = %s ORDER BY id"
REASON = ("--reason", "a test")


class Held(NamedTuple):
    """The ids of messages that fail, and of the topic that is paused."""

    large: int
    other: int
    old: int
    paused: int


@pytest.fixture
def held(conn: Connection) -> Held:
    """Two keys of a topic, one key of another topic that has been held for two hours, and a paused topic."""
    own_lanes(conn)
    found = Held(
        write_key(conn, "orders", "a"),
        write_key(conn, "orders", "b"),
        write_key(conn, "bills", "c"),
        min(write_key(conn, "paused", key) for key in ("d", "e", "f")),
    )
    hold_key(conn, found.large)
    hold_key(conn, found.other, "SELECTOR_FAILED: odd")
    hold_key(conn, found.old, age=7_200.0)
    hold_topic(conn, "paused", "TOPIC_PAUSED: by an operator")
    return found


def listed(database: str, *options: str) -> list[int]:
    return [one["id"] for one in succeed("holds", "ls", *options, "--json", OUTBOX_DSN=database).json]


def test_holds_are_listed_by_topic_error_and_age(database: str, held: Held) -> None:
    assert listed(database) == [held.old, held.large, held.other, held.paused], "the oldest first"
    assert listed(database, "--topic", "orders") == [held.large, held.other]
    assert listed(database, "--error", "MESSAGE_TOO_LARGE") == [held.old, held.large]
    assert listed(database, "--older-than", "1h") == [held.old]
    assert listed(database, "--limit", "1") == [held.old]
    assert "more are held than these 1" in succeed("holds", "ls", "--limit", "1", OUTBOX_DSN=database).err
    assert outbox("holds", "ls", "--older-than", "old", OUTBOX_DSN=database).code == 2


def test_a_topic_is_one_hold_in_all_its_lanes(database: str, conn: Connection, held: Held) -> None:
    (topic,) = succeed("holds", "ls", "--topic", "paused", "--json", OUTBOX_DSN=database).json
    lanes = conn.execute(
        "SELECT DISTINCT lane FROM outbox.message WHERE topic = 'paused' ORDER BY lane"
    ).fetchall()
    assert [(lane,) for lane in topic["lanes"]] == lanes
    assert (topic["kind"], topic["id"], topic["waiting"]) == ("topic", held.paused, 6)
    last = value(conn, "SELECT max(id) FROM outbox.message WHERE topic = 'paused'")
    shown = succeed("holds", "show", str(last), "--json", OUTBOX_DSN=database).json
    assert [one["reason"] for one in shown.pop("messages")] == ["held"] * 6
    assert shown == topic


def test_what_is_released_is_what_was_chosen(database: str, conn: Connection, held: Held) -> None:
    succeed("holds", "release", "--topic", "orders", "--error", "SELECTOR_FAILED", OUTBOX_DSN=database)
    assert conn.execute(REQUESTED).fetchall() == [(held.other,)]
    succeed("holds", "release", "--older-than", "1h", OUTBOX_DSN=database)
    assert conn.execute(REQUESTED).fetchall() == [(held.other,), (held.old,)]
    ran = succeed("holds", "release", "--all", OUTBOX_DSN=database)
    assert conn.execute(REQUESTED).fetchall() == [(held.large,), (held.other,), (held.old,)]
    assert "topic paused, all of it is left as it is: let it go on: outbox topic resume paused" in ran.err
    refused = outbox("holds", "release", str(held.paused), OUTBOX_DSN=database)
    assert (refused.code, "outbox topic resume paused" in refused.err) == (1, True)


def test_a_message_of_a_topic_that_waits_for_kafka_releases_its_topic(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    ids = [write_key(conn, "away", key) for key in ("d", "e", "f")]
    hold_topic(conn, "away", "LEADER_NOT_AVAILABLE: partition 0")
    for words in (("--topic", "away"), (str(ids[0]),)):
        conn.execute("UPDATE outbox.parked_key SET requested_at = NULL")
        succeed("holds", "release", *words, OUTBOX_DSN=database)
        assert value(conn, "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NULL") == 0, words


@pytest.mark.parametrize(("action", "state"), [("skip", "SKIPPED"), ("dead", "DEAD")])
def test_what_fails_is_given_up_or_set_aside_by_filters(
    database: str, conn: Connection, held: Held, action: str, state: str
) -> None:
    chosen = ("--error", "MESSAGE_TOO_LARGE", "--older-than", "1h")
    ran = succeed("holds", action, *chosen, *REASON, "--json", OUTBOX_DSN=database)
    assert ran.json == {"done": 1, "failed": []}
    assert conn.execute(STATES, [state]).fetchall() == [(held.old,)]
    assert succeed("holds", action, *chosen, *REASON, "--json", OUTBOX_DSN=database).json["done"] == 0
    succeed("holds", action, "--topic", "orders", *REASON, OUTBOX_DSN=database)
    assert conn.execute(STATES, [state]).fetchall() == [(held.large,), (held.other,), (held.old,)]
    assert (
        succeed("holds", action, "--topic", "paused", *REASON, "--json", OUTBOX_DSN=database).json["done"]
        == 0
    )
    assert outbox("holds", action, *REASON, OUTBOX_DSN=database).code == 2, "nothing is chosen by default"


@pytest.mark.parametrize(("action", "state"), [("skip", "SKIPPED"), ("dead", "DEAD")])
def test_what_may_be_in_kafka_is_left_and_told(
    database: str, conn: Connection, held: Held, action: str, state: str
) -> None:
    conn.execute("UPDATE outbox.waiting SET in_doubt = true WHERE id = %s", [held.large])
    ran = succeed("holds", action, "--topic", "orders", *REASON, OUTBOX_DSN=database)
    assert "messages in doubt are left as they are" in ran.err
    assert conn.execute(STATES, [state]).fetchall() == [(held.other,)]
    succeed("holds", "skip", "--topic", "orders", "--may-be-published", *REASON, OUTBOX_DSN=database)
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [held.large]) == "SKIPPED"


def test_what_fails_or_changes_while_a_bulk_change_runs_is_left_alone(
    database: str, conn: Connection, held: Held
) -> None:
    with connect_as_service(database) as session:
        outcomes = act_on_all(session, "skip", HoldFilter(topic="orders"), "a test", 1.0)
        assert next(outcomes).state == "SKIPPED"
        conn.execute("UPDATE outbox.waiting SET reason = 'failed' WHERE id = %s", [held.large + 1])
        conn.execute("UPDATE outbox.parked_key SET head = %s WHERE number = %s", [held.large + 1, held.large])
        succeed("holds", "dead", str(held.other), *REASON, OUTBOX_DSN=database)
        changed, *more = outcomes
    assert (changed.half["id"], changed.result, more) == (held.other, "refused", [])
    assert conn.execute(STATES, ["DEAD"]).fetchall() == [(held.other,)]
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [held.large + 1]) == "COMMITTED"


def test_a_topic_with_two_errors_is_two_holds(database: str, conn: Connection, held: Held) -> None:
    conn.execute(
        "UPDATE outbox.parked_key SET error = 'LEADER_NOT_AVAILABLE: 0' WHERE number = %s", [-held.paused]
    )
    assert listed(database, "--topic", "paused", "--error", "LEADER_NOT_AVAILABLE") == [held.paused]
    assert len(listed(database, "--topic", "paused")) == 2
    ran = succeed("holds", "release", "--topic", "paused", "--json", OUTBOX_DSN=database)
    assert [one["id"] for one in ran.json["released"]] == [held.paused]
    paused = (
        "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NOT NULL AND error LIKE 'TOPIC_PAUSED%'"
    )
    assert value(conn, paused) == 0


def test_a_hold_whose_message_was_given_up_advises_nothing_that_is_refused(
    database: str, conn: Connection, held: Held
) -> None:
    succeed("holds", "skip", str(held.large), *REASON, OUTBOX_DSN=database)
    (hold, *_) = [
        one
        for one in succeed("holds", "ls", "--topic", "orders", "--json", OUTBOX_DSN=database).json
        if one["id"] == held.large
    ]
    assert hold["repair"] == [
        "the message that failed is given up; what is held behind it follows once a relay comes to it"
    ]


def test_a_release_tells_that_no_relay_runs_or_that_the_topic_waits(
    database: str, conn: Connection, held: Held
) -> None:
    conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 second'")
    assert "no relay runs for it" in succeed("holds", "release", str(held.large), OUTBOX_DSN=database).out
    conn.execute(
        "INSERT INTO outbox.parked_key (number, lane, topic, head, error) "
        "SELECT -m.id, m.lane, m.topic, m.id, 'LEADER_NOT_AVAILABLE: 0' FROM outbox.message m WHERE m.id = %s",
        [held.large],
    )
    told = succeed("holds", "release", str(held.large), OUTBOX_DSN=database).out
    assert "once its topic is published again: start a broker that has the partition" in told


def test_what_was_set_aside_is_released_with_a_reason(database: str, conn: Connection, held: Held) -> None:
    succeed("holds", "dead", str(held.large), *REASON, OUTBOX_DSN=database)
    refused = outbox("holds", "release", str(held.large), OUTBOX_DSN=database)
    assert (refused.code, f"outbox holds release {held.large} --reason TEXT" in refused.err) == (1, True)
    assert conn.execute(STATES, ["DEAD"]).fetchall() == [(held.large,)]
    succeed("holds", "release", str(held.large), *REASON, OUTBOX_DSN=database)
    assert conn.execute(STATES, ["DEAD"]).fetchall() == []


@pytest.mark.parametrize(
    ("former", "present"),
    [
        (("message", "retry", "4711"), "outbox holds release"),
        (("message", "skip", "4711"), "outbox holds skip"),
        (("message", "dead", "4711"), "outbox holds dead"),
        (("lane", "ls"), "outbox holds ls"),
        (("lane", "retry", "4"), "outbox holds release --all"),
        (("lane", "retry", "--all"), "outbox holds release --all"),
        (("lane",), "outbox holds --help"),
    ],
)
def test_a_former_command_names_the_present_one(former: tuple[str, ...], present: str) -> None:
    ran = outbox(*former)
    assert (ran.code, present in ran.err) == (2, True)
