"""`outbox message retry | dead | skip`, `outbox lane ls` and `outbox status` with a parked key."""

from __future__ import annotations

import pytest

from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert
from tests.support.publications import own_lanes, value

PARK = """
    WITH parked AS (
        INSERT INTO outbox.parked_key (number, lane, topic, order_key, head, error)
        SELECT m.id, m.lane, m.topic, m.key, m.id, 'MESSAGE_TOO_LARGE: much' FROM outbox.message m WHERE m.id = %(head)s
        RETURNING number
    )
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place)
    SELECT m.id, m.message_id, CASE m.id WHEN %(head)s THEN 'failed' ELSE 'held' END, p.number, m.position
    FROM outbox.message m, parked p
"""
REQUESTED = "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NOT NULL"


@pytest.fixture
def head(conn: Connection) -> int:
    """A message that parks its key, with another one held behind it."""
    own_lanes(conn)
    for body in ("0", "1"):
        insert(conn, "orders", "k", body)
    found = int(value(conn, "SELECT min(id) FROM outbox.message"))
    conn.execute(PARK, {"head": found})
    return found


def test_a_parked_key_is_listed_and_retried(database: str, conn: Connection, head: int) -> None:
    listed = succeed("lane", "ls", OUTBOX_DSN=database).out
    assert f"at message {head}, 1 message held: MESSAGE_TOO_LARGE: much" in listed
    assert f"outbox message retry {head} --reason TEXT" in listed
    dead = succeed("message", "ls", "--status", "DEAD", "--json", OUTBOX_DSN=database).json
    assert [(one["id"], one["status"], one["waiting"]) for one in dead] == [(head, "DEAD", "failed")]
    committed = succeed("message", "ls", "--status", "COMMITTED", "--json", OUTBOX_DSN=database).json
    assert [(one["id"], one["waiting"]) for one in committed] == [(head + 1, "held")]
    ran = outbox("status", "--check", OUTBOX_DSN=database)
    assert "1 message cannot be published, with 1 message held behind" in ran.out + ran.err
    ran = succeed("message", "retry", str(head), "--reason", "limit raised", OUTBOX_DSN=database)
    assert "is tried again within about a second" in ran.out
    assert value(conn, REQUESTED) == 1


def test_parked_keys_are_in_the_documents_of_lanes_and_messages(
    database: str, conn: Connection, head: int
) -> None:
    lanes = succeed("lane", "ls", "--json", OUTBOX_DSN=database).json
    (key,) = [key for one in lanes for key in one["parked_keys"]]
    assert (key["id"], key["order_key"], key["held"]) == (head, "k", 1)
    assert f"outbox message skip {head} --reason TEXT" in key["repair"][1]
    for id_ in (head, head + 1):
        shown = succeed("message", "show", str(id_), "--json", OUTBOX_DSN=database).json
        assert shown["parked"] == key
    assert f"outbox message retry {head}" in succeed("message", "show", str(head), OUTBOX_DSN=database).out
    told = succeed("message", "show", str(head + 1), OUTBOX_DSN=database).out
    assert f"held behind message {head}, which cannot be published: MESSAGE_TOO_LARGE" in told


def test_a_changed_topic_asks_for_the_drain_of_its_parked_keys(
    database: str, conn: Connection, bootstrap_servers: str, topic: str, head: int
) -> None:
    given = {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}
    succeed("topic", "register", topic, **given)
    assert value(conn, REQUESTED) == 0, "it is of another topic"
    conn.execute("UPDATE outbox.parked_key SET topic = %s", [topic])
    ran = succeed("topic", "alter", topic, "--type", "FIFO", **given)
    assert f"the relay tries 1 parked key of {topic} again now" in ran.err
    assert value(conn, REQUESTED) == 1


@pytest.mark.parametrize(("action", "state"), [("dead", "DEAD"), ("skip", "SKIPPED")])
def test_giving_up_the_head_asks_for_the_drain_of_what_is_held(
    database: str, conn: Connection, head: int, action: str, state: str
) -> None:
    succeed("message", action, str(head), "--reason", "poison", OUTBOX_DSN=database)
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [head]) == state
    assert value(conn, REQUESTED) == 1
    assert conn.execute("SELECT reason FROM outbox.waiting").fetchall() == [("held",)]


def test_a_message_in_doubt_is_given_up_as_such_only(database: str, conn: Connection, head: int) -> None:
    conn.execute("UPDATE outbox.waiting SET in_doubt = true")
    ran = outbox("message", "skip", str(head), "--reason", "poison", OUTBOX_DSN=database)
    assert (ran.code, "it may be in Kafka already" in ran.err) == (1, True)
    succeed("message", "skip", str(head), "--may-be-published", "--reason", "poison", OUTBOX_DSN=database)
    assert value(conn, REQUESTED) == 1


@pytest.mark.parametrize(
    ("has_relay", "told"), [(True, "its key"), (False, "the relay that was trying its key again has ended")]
)
@pytest.mark.parametrize("action", ["dead", "skip", "retry"])
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
    ran = outbox("message", action, str(head), "--reason", "poison", OUTBOX_DSN=database)
    assert (ran.code, told in ran.err) == (1, True)
    assert ("outbox relay run" in ran.err) is not has_relay
    assert ("repeat in a few seconds" in ran.err) is (has_relay and action != "retry")
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [head]) == "COMMITTED"
