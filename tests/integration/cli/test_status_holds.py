"""`outbox status` shows holds: their kinds, how many messages wait, since when, and the command that repairs them."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from tests.support.held_keys import hold_key, hold_partition, hold_topic, write_key
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection
from tests.support.publications import own_lanes

LARGE = "MESSAGE_TOO_LARGE: much"


@pytest.fixture
def held(conn: Connection) -> None:
    """Two keys of orders and an older one of bills, a message without a key, two topics, and a partition."""
    own_lanes(conn)
    hold_key(conn, write_key(conn, "bills", "c", 4), age=7_200.0)
    for key in ("a", "b"):
        hold_key(conn, write_key(conn, "orders", key, 3), age=60.0)
    hold_key(conn, write_key(conn, "orders", "alone", 1), "SELECTOR_FAILED: odd")
    conn.execute("UPDATE outbox.parked_key SET order_key = NULL WHERE error LIKE 'SELECTOR_FAILED%%'")
    for topic, error in (("paused", "TOPIC_PAUSED: by a test"), ("gone", "UNKNOWN_TOPIC_OR_PART: gone")):
        for key in ("d", "e", "f"):
            write_key(conn, topic, key)
        hold_topic(conn, topic, error)
    write_key(conn, "sick", "g", 1)
    hold_partition(conn, "sick", 2, "LEADER_NOT_AVAILABLE: partition 2")


def document(database: str) -> dict[str, Any]:
    found: dict[str, Any] = succeed("status", "--json", OUTBOX_DSN=database).json
    return found


def test_machines_get_holds_by_kind_topic_and_error(database: str, held: None) -> None:
    found = document(database)
    assert {
        (one["kind"], one["topic"], one["error"], one["holds"], one["waiting"]) for one in found["holds"]
    } == {
        ("key", "bills", LARGE, 1, 3),
        ("key", "orders", LARGE, 2, 4),
        ("message", "orders", "SELECTOR_FAILED: odd", 1, 0),
        ("topic", "paused", "TOPIC_PAUSED: by a test", 1, 6),
        ("topic", "gone", "UNKNOWN_TOPIC_OR_PART: gone", 1, 6),
        ("partition", "sick", "LEADER_NOT_AVAILABLE: partition 2", 1, 1),
    }
    assert [one["age_seconds"] // 7_200 for one in found["holds"]] == [1, 0, 0, 0, 0, 0], "the oldest first"
    assert found["waiting"] == [], "what is held is counted once"


def test_the_command_of_each_lists_its_holds_and_no_others(database: str, held: None) -> None:
    for group in document(database)["holds"]:
        listed = succeed(*shlex.split(group["command"])[1:], "--json", OUTBOX_DSN=database).json
        assert {(one["kind"], one["topic"]) for one in listed} == {(group["kind"], group["topic"])}
        assert len(listed) == group["holds"]
        assert min(one["since"] for one in listed) == group["since"]
        assert sum(one["waiting"] for one in listed) == group["waiting"]


def test_people_get_one_problem_for_each_kind_with_the_oldest(database: str, held: None) -> None:
    lines = outbox("status", "--check", OUTBOX_DSN=database).out.splitlines()
    kinds, rest = zip(
        *((line.partition(" held since ")[0], line.partition("Z, ")[2]) for line in lines), strict=True
    )
    assert kinds == ("PROBLEM: 2 topics", "PROBLEM: 1 partition", "PROBLEM: 3 keys", "PROBLEM: 1 message")
    assert rest[0] == "12 messages wait; the oldest: topic paused: TOPIC_PAUSED: by a test: outbox holds ls"
    assert rest[2] == f"7 messages wait; the oldest: topic bills: {LARGE}: outbox holds ls"
    assert lines[3].endswith(
        "Z: topic orders: SELECTOR_FAILED: odd: outbox holds ls --topic orders --error SELECTOR_FAILED"
    )
    shown = succeed("status", OUTBOX_DSN=database).out
    assert "held        3 keys, 1 message, 2 topics, 1 partition, 20 messages behind" in shown
    assert "parked" not in shown
    assert "stopped" not in shown
