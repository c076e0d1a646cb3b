"""`outbox holds`: each kind of hold names the message, the reason and the command, and the command works."""

from __future__ import annotations

import pytest

from tests.support.held_keys import hold_key, hold_partition, hold_topic, write_key
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection
from tests.support.publications import own_lanes, value

REQUESTED = "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NOT NULL"


@pytest.fixture
def head(conn: Connection) -> int:
    """A message that parks its key, with another one held behind it."""
    own_lanes(conn)
    found = write_key(conn, "orders", "k")
    hold_key(conn, found)
    return found


def test_a_parked_key_is_listed_and_retried(database: str, conn: Connection, head: int) -> None:
    listed = succeed("holds", "ls", OUTBOX_DSN=database).out
    assert f"at message {head}, 1 message held: MESSAGE_TOO_LARGE: much" in listed
    assert "outbox topic alter orders --max-message-bytes N, then: outbox holds release" in listed
    dead = succeed("message", "ls", "--status", "DEAD", "--json", OUTBOX_DSN=database).json
    assert [(one["id"], one["status"], one["waiting"]) for one in dead] == [(head, "DEAD", "failed")]
    committed = succeed("message", "ls", "--status", "COMMITTED", "--json", OUTBOX_DSN=database).json
    assert [(one["id"], one["waiting"]) for one in committed] == [(head + 1, "held")]
    ran = outbox("status", "--check", OUTBOX_DSN=database)
    assert "PROBLEM: 1 key held since" in ran.out
    assert "1 message waits: topic orders: MESSAGE_TOO_LARGE" in ran.out
    ran = succeed("holds", "release", str(head), OUTBOX_DSN=database)
    assert "is tried again within about a second" in ran.out
    assert value(conn, REQUESTED) == 1


def test_a_hold_has_one_document_everywhere(database: str, conn: Connection, head: int) -> None:
    (key,) = succeed("holds", "ls", "--json", OUTBOX_DSN=database).json
    assert (key["kind"], key["id"], key["order_key"], key["waiting"]) == ("key", head, "k", 1)
    assert f"outbox holds skip {head} --reason TEXT" in key["repair"][1]
    for id_ in (head, head + 1):
        assert succeed("message", "show", str(id_), "--json", OUTBOX_DSN=database).json["hold"] == key
        held = succeed("holds", "show", str(id_), "--json", OUTBOX_DSN=database).json
        assert [(one["id"], one["reason"]) for one in held.pop("messages")] == [
            (head, "failed"),
            (head + 1, "held"),
        ]
        assert held == key
    assert f"outbox holds release {head}" in succeed("message", "show", str(head), OUTBOX_DSN=database).out
    told = succeed("message", "show", str(head + 1), OUTBOX_DSN=database).out
    assert f"behind message {head}, which cannot be published: MESSAGE_TOO_LARGE" in told


@pytest.mark.parametrize(("action", "state"), [("dead", "DEAD"), ("skip", "SKIPPED")])
def test_giving_up_the_head_asks_for_the_drain_of_what_is_held(
    database: str, conn: Connection, head: int, action: str, state: str
) -> None:
    succeed("holds", action, str(head), "--reason", "poison", OUTBOX_DSN=database)
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [head]) == state
    assert value(conn, REQUESTED) == 1
    assert conn.execute("SELECT reason FROM outbox.waiting").fetchall() == [("held",)]


def test_a_message_in_doubt_is_given_up_as_such_only(database: str, conn: Connection, head: int) -> None:
    conn.execute("UPDATE outbox.waiting SET in_doubt = true")
    ran = outbox("holds", "skip", str(head), "--reason", "poison", OUTBOX_DSN=database)
    assert (ran.code, "it may be in Kafka already" in ran.err) == (1, True)
    succeed("holds", "skip", str(head), "--may-be-published", "--reason", "poison", OUTBOX_DSN=database)
    assert value(conn, REQUESTED) == 1


@pytest.mark.parametrize(
    ("has_relay", "told"), [(True, "its key"), (False, "the relay that was trying its key again has ended")]
)
@pytest.mark.parametrize("action", ["dead", "skip", "release"])
def test_what_is_being_drained_is_refused_with_what_to_do_with_and_without_a_relay(
    database: str, conn: Connection, head: int, action: str, told: str, *, has_relay: bool
) -> None:
    """Without a relay nothing ends the drain: who repeats the command would be refused for ever."""
    conn.execute(
        "UPDATE outbox.parked_key SET draining_at = clock_timestamp(), requested_at = clock_timestamp()"
    )
    own_lanes(conn)
    if not has_relay:
        conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 second'")
    ran = outbox("holds", action, str(head), "--reason", "poison", OUTBOX_DSN=database)
    assert (ran.code, told in ran.err) == (1, True)
    assert ("outbox relay run" in ran.err) is not has_relay
    assert ("repeat in a few seconds" in ran.err) is (has_relay and action != "release")
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [head]) == "COMMITTED"


REPLICAS = "NOT_ENOUGH_REPLICAS: topic 'sick', partition 2: no acknowledgement for 10 s"


def hold(conn: Connection, kind: str) -> list[int]:
    """Make a hold of this kind, of two messages or of one; return their ids."""
    own_lanes(conn)
    first = write_key(conn, "sick", "k", 1 if kind == "message" else 2)
    if kind == "topic":
        hold_topic(conn, "sick", "UNKNOWN_TOPIC_OR_PART: topic 'sick'")
    elif kind == "partition":
        hold_partition(conn, "sick", 2, REPLICAS)
    else:
        hold_key(conn, first)
    if kind == "message":
        conn.execute("UPDATE outbox.parked_key SET order_key = NULL")
    return [id_ for (id_,) in conn.execute("SELECT id FROM outbox.waiting ORDER BY place")]


def named(database: str, id_: int) -> list[str]:
    """Return the arguments of the command by which `holds show` lets the relay try a hold again."""
    repair = succeed("holds", "show", str(id_), "--json", OUTBOX_DSN=database).json["repair"]
    return str(repair[0]).rpartition("outbox ")[2].split()


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("message", "message {0}, topic sick: held since 20"),
        ("key", "topic sick, key k: held since 20"),
        ("partition", "topic sick, partition 2: held since 20"),
        ("topic", "topic sick, all of it: held since 20"),
    ],
)
def test_each_kind_of_hold_names_a_message_and_a_command_that_releases_it(
    database: str, conn: Connection, kind: str, line: str
) -> None:
    ids = hold(conn, kind)
    shown = succeed("holds", "show", str(ids[-1]), OUTBOX_DSN=database).out.splitlines()
    assert shown[0].startswith(line.format(*ids))
    assert f"message {ids[0]}" in shown[0]
    assert ("2 messages held, from" in shown[0]) is (kind in ("partition", "topic"))
    told = succeed("message", "show", str(ids[-1]), OUTBOX_DSN=database).out
    assert f"outbox {' '.join(named(database, ids[0]))}" in told
    assert " since 20" in told
    assert "holds up" not in told
    assert value(conn, REQUESTED) == 0
    succeed(*named(database, ids[0]), OUTBOX_DSN=database)
    assert value(conn, REQUESTED) == 1
    assert "; to be tried again, as asked at 20" in succeed("holds", "ls", OUTBOX_DSN=database).out


@pytest.mark.parametrize("kind", ["partition", "topic"])
def test_a_hold_whose_first_message_is_given_up_names_the_next_one(
    database: str, conn: Connection, kind: str
) -> None:
    first, second = hold(conn, kind)
    succeed("holds", "skip", str(first), "--reason", "sent again", OUTBOX_DSN=database)
    assert f"1 message held, from message {second} on" in succeed("holds", "ls", OUTBOX_DSN=database).out
    succeed(*named(database, second), OUTBOX_DSN=database)
    succeed("holds", "skip", str(second), "--reason", "sent again", OUTBOX_DSN=database)
    (left,) = succeed("holds", "ls", "--json", OUTBOX_DSN=database).json
    command = left["repair"][0].rpartition("outbox ")[2].split()
    succeed(*command, OUTBOX_DSN=database)


def test_a_release_in_vain_is_counted(database: str, conn: Connection, head: int) -> None:
    conn.execute("UPDATE outbox.parked_key SET tries = 2")
    assert ": MESSAGE_TOO_LARGE: much; tried again 2 times" in succeed("holds", "ls", OUTBOX_DSN=database).out


def test_a_topic_that_kafka_never_takes_names_how_its_messages_are_given_up(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    first = write_key(conn, "odd", "k")
    hold_topic(conn, "odd", "TOPIC_EXCEPTION: a test")
    told = succeed("holds", "show", str(first), OUTBOX_DSN=database).out
    assert f"give up each that waits, as the first: outbox holds skip {first} --reason TEXT" in told


def test_what_no_hold_keeps_back_is_told_from_what_was_never_written(database: str, conn: Connection) -> None:
    free = write_key(conn, "orders", "free", 1)
    ran = outbox("holds", "show", str(free), OUTBOX_DSN=database)
    assert (ran.code, f"no hold keeps back message {free}" in ran.err) == (1, True)
    ran = outbox("holds", "show", "999999", OUTBOX_DSN=database)
    assert (ran.code, "there is no message 999999" in ran.err) == (1, True)
