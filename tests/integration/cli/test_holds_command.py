"""`outbox holds` and `outbox status` with a held key."""

from __future__ import annotations

import pytest

from tests.support.held_keys import hold_key, write_key
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
    assert f"held behind message {head}, which cannot be published: MESSAGE_TOO_LARGE" in told


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
