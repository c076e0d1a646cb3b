"""`outbox holds` with messages that fail, that may be in Kafka, and that were set aside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.held_keys import hold_key
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert, keys_of_lanes
from tests.support.publications import own_lanes, positions, record, snapshot, value
from tests.support.stopped_lanes import set_aside, stop_lane

MISSING = "UNKNOWN_TOPIC_OR_PART: topic 'orders': no such topic; create it with: outbox topic create orders"
STATE = "SELECT state FROM outbox.message WHERE id = %s"


def sent(conn: Connection, lane: int = 4, **columns: object) -> int:
    """Write a message of this lane and return its id."""
    (key,) = keys_of_lanes(conn, "orders", lane)
    insert(conn, "orders", key, b"x", **columns)
    return int(value(conn, "SELECT max(id) FROM outbox.message"))


def requested(conn: Connection) -> int:
    return int(value(conn, "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NOT NULL"))


def let_go(conn: Connection) -> None:
    """End all holds, as the relay does once it has published what waits."""
    conn.execute("DELETE FROM outbox.waiting")
    conn.execute("DELETE FROM outbox.parked_key")


def test_a_message_is_set_aside_retried_and_given_up_with_reasons(database: str, conn: Connection) -> None:
    id_ = sent(conn)
    hold_key(conn, id_)
    ran = succeed("holds", "dead", str(id_), "--reason", "poison", OUTBOX_DSN=database)
    assert f"message {id_} is set aside: the others go on" in ran.out
    assert requested(conn) == 1
    again = succeed("holds", "dead", str(id_), "--reason", "poison", "--json", OUTBOX_DSN=database).json
    assert (again["result"], again["state"], again["reason"]) == ("already", "DEAD", "poison")
    let_go(conn)
    before = value(conn, "SELECT position FROM outbox.message WHERE id = %s", [id_])
    assert (
        "is committed again"
        in succeed("holds", "release", str(id_), "--reason", "mended", OUTBOX_DSN=database).out
    )
    assert value(conn, "SELECT position FROM outbox.message WHERE id = %s", [id_]) > before
    hold_key(conn, id_)
    assert (
        "never published"
        in succeed("holds", "skip", str(id_), "--reason", "sent anew", OUTBOX_DSN=database).out
    )
    events = conn.execute(
        "SELECT from_state, to_state, reason, actor LIKE 'operator:%%' FROM outbox.event ORDER BY happened_at"
    ).fetchall()
    assert events == [
        ("COMMITTED", "DEAD", "poison", True),
        ("DEAD", "COMMITTED", "mended", True),
        ("COMMITTED", "DEAD", "sent anew", True),
        ("DEAD", "SKIPPED", "sent anew", True),
    ]
    for action in ("release", "dead"):
        ran = outbox("holds", action, str(id_), "--reason", "why", OUTBOX_DSN=database)
        assert (ran.code, "is SKIPPED, which is final" in ran.err) == (1, True)


def test_what_cannot_be_set_aside_says_why_and_what_to_do(database: str, conn: Connection) -> None:
    own_lanes(conn)
    half = sent(conn, state="UNKNOWN", producer_group="g")
    first, other = sent(conn), sent(conn, lane=6)

    def refusal(id_: int, action: str = "dead") -> str:
        ran = outbox("holds", action, str(id_), "--reason", "why", OUTBOX_DSN=database)
        assert ran.code == 1, ran.out
        assert "lane" not in ran.err
        return ran.err

    assert f"outbox tx rollback {half}" in refusal(half)
    assert "waits for no hold and not for its time, so a relay may be publishing it now" in refusal(other)
    assert f"outbox message show {other}" in refusal(other)
    assert "is held by nothing" in refusal(other, "release")
    hold_key(conn, first)
    conn.execute("UPDATE outbox.waiting SET in_doubt = true")
    message_id = value(conn, "SELECT message_id FROM outbox.message WHERE id = %s", [first])
    text = refusal(first)
    assert "it may be in Kafka already, because an earlier acknowledgement was lost" in text
    assert f"outbox holds release {message_id}" in text
    assert f"outbox holds skip {message_id} --may-be-published" in text
    assert refusal(first, "skip") == text
    listed = succeed("holds", "ls", OUTBOX_DSN=database).out
    assert "holds dead" not in listed
    assert f"outbox holds skip {first} --may-be-published --reason TEXT" in listed
    record(conn, positions(conn, f"id = {other}"), seen=snapshot(conn), batch=1, partition=6, offset=0)
    assert "it is published at 6/0" in refusal(other)
    assert "is published already, at orders 6/0" in refusal(other, "release")


def test_what_an_older_relay_stopped_at_is_refused_in_the_words_of_today(
    database: str, conn: Connection
) -> None:
    """The guard of the table still names the lane, and commands that are gone."""
    own_lanes(conn)
    first, second = sent(conn), sent(conn)
    stop_lane(conn, first, in_doubt=True)
    ran = outbox("holds", "dead", str(second), "--reason", "why", OUTBOX_DSN=database)
    assert (ran.code, "waits for no hold" in ran.err) == (1, True)
    ran = outbox("holds", "dead", str(first), "--reason", "why", OUTBOX_DSN=database)
    assert (ran.code, "Repair the cause, and it is published: outbox relay run; or" in ran.err) == (1, True)


def test_a_message_that_another_transaction_holds_is_left_alone(database: str, conn: Connection) -> None:
    id_ = sent(conn)
    hold_key(conn, id_)
    with conn.transaction():
        conn.execute("SELECT FROM outbox.parked_key FOR UPDATE")
        ran = outbox("holds", "dead", str(id_), "--reason", "why", "--wait", "0.05", OUTBOX_DSN=database)
    assert (ran.code, "run it again" in ran.err) == (1, True)
    assert value(conn, STATE, [id_]) == "COMMITTED"


def test_an_operators_login_is_enough_and_a_producers_is_not(logins: Logins, conn: Connection) -> None:
    id_ = sent(conn)
    hold_key(conn, id_)
    given = ["holds", "dead", str(id_), "--reason", "why"]
    reader = outbox(*given, OUTBOX_DSN=logins.make("outbox_reader"))
    assert reader.code == 1
    assert value(conn, STATE, [id_]) == "COMMITTED"
    operator = logins.make("outbox_operator")
    succeed(*given, OUTBOX_DSN=operator)
    succeed("holds", "release", "--topic", "orders", OUTBOX_DSN=operator)
    succeed("holds", "ls", OUTBOX_DSN=operator)
    succeed("message", "show", str(id_), OUTBOX_DSN=operator)
    half = sent(conn, state="UNKNOWN", producer_group="g")
    succeed("tx", "explain", str(half), OUTBOX_DSN=operator)
    succeed("tx", "check", str(half), OUTBOX_DSN=operator)
    succeed("tx", "commit", str(half), "--reason", "seen", OUTBOX_DSN=operator)
    succeed("group", "set", "g", "--workers", "2", OUTBOX_DSN=operator)


def test_a_release_of_all_says_that_nothing_is_held_or_that_no_relay_runs(
    database: str, conn: Connection
) -> None:
    assert "nothing of that is held" in succeed("holds", "release", "--all", OUTBOX_DSN=database).out
    assert outbox("holds", "release", OUTBOX_DSN=database).code == 2
    hold_key(conn, sent(conn))
    assert "no relay runs" in succeed("holds", "release", "--all", OUTBOX_DSN=database).err
    assert requested(conn) == 1


@pytest.mark.parametrize("foreign", [None, "0192d3f0-0000-7000-8000-000000000001"])
def test_explain_and_show_name_the_hold(database: str, conn: Connection, foreign: str | None) -> None:
    own_lanes(conn)
    given: dict[str, Any] = {} if foreign is None else {"message_id": foreign}
    cause = sent(conn, state="UNKNOWN", producer_group="shop", **given)
    behind = sent(conn, state="UNKNOWN", producer_group="shop")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED'")
    assert "as soon as the relay gets to it" in succeed("tx", "explain", str(behind), OUTBOX_DSN=database).out
    hold_key(conn, cause, MISSING)
    for words in (("tx", "explain"), ("message", "show")):
        told = " ".join(succeed(*words, str(behind), OUTBOX_DSN=database).out.split())
        assert f"behind message {cause}, which cannot be published: UNKNOWN_TOPIC_OR_PART" in told
        assert "outbox topic create orders" in told
        assert f"outbox holds dead {cause} --reason TEXT" in told
        told = " ".join(succeed(*words, str(cause), OUTBOX_DSN=database).out.split())
        assert "cannot be published since 20" in told
        assert "Z, and holds up 1 message of its key: UNKNOWN_TOPIC_OR_PART" in told
        assert f"outbox holds release {cause}" in told
        assert "set aside." not in told
    document = succeed("tx", "explain", str(behind), "--json", OUTBOX_DSN=database).json
    assert [step["what"] for step in document["next"]] == ["held"]
    assert document["next"][0]["alarm"] is True
    assert succeed("message", "show", str(behind), "--json", OUTBOX_DSN=database).json["hold"]["id"] == cause


def test_explain_of_a_dead_message_names_its_ways_out(database: str, conn: Connection) -> None:
    id_ = sent(conn, state="UNKNOWN", producer_group="shop")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED'")
    set_aside(conn, id_)
    told = succeed("tx", "explain", str(id_), OUTBOX_DSN=database).out
    assert f"outbox holds release {id_}" in told
    assert f"outbox holds skip {id_}" in told


def test_explain_of_an_expired_message_advises_nothing_that_is_refused(
    database: str, conn: Connection
) -> None:
    id_ = sent(conn, state="UNKNOWN", producer_group="shop")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED'")
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason) SELECT id, message_id, 'expired' FROM outbox.message"
    )
    told = succeed("tx", "explain", str(id_), OUTBOX_DSN=database).out
    assert f"outbox holds skip {id_} --reason TEXT" in told
    assert "outbox holds release" not in told


def test_a_group_is_bound_to_a_role_and_freed(database: str, conn: Connection) -> None:
    ran = succeed("group", "set", "shop", "--role", "Shop writers", OUTBOX_DSN=database)
    assert "members of Shop writers, checkers, operators" in ran.out
    assert value(conn, "SELECT role FROM outbox.producer_group") == "Shop writers"
    succeed("group", "set", "shop", "--workers", "2", OUTBOX_DSN=database)
    assert value(conn, "SELECT role FROM outbox.producer_group") == "Shop writers"
    succeed("group", "set", "shop", "--role", "", OUTBOX_DSN=database)
    assert value(conn, "SELECT role FROM outbox.producer_group") is None
