"""`outbox holds` with held lanes and with messages that were set aside."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.locks import holding
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert, keys_of_lanes
from tests.support.publications import own_lanes, positions, record, snapshot, value
from tests.support.stopped_lanes import go_on, set_aside, stop_lane

MISSING = "UNKNOWN_TOPIC_OR_PART: topic 'orders': no such topic; create it with: outbox topic create orders"
STATE = "SELECT state FROM outbox.message WHERE id = %s"


def sent(conn: Connection, lane: int = 4, **columns: object) -> int:
    """Write a message of this lane and return its id."""
    (key,) = keys_of_lanes(conn, "orders", lane)
    insert(conn, "orders", key, b"x", **columns)
    return int(value(conn, "SELECT max(id) FROM outbox.message"))


def requested(conn: Connection) -> list[int]:
    rows = conn.execute("SELECT lane FROM outbox.lane WHERE retry_requested_at IS NOT NULL ORDER BY lane")
    return [lane for (lane,) in rows]


def test_a_message_is_set_aside_retried_and_given_up_with_reasons(database: str, conn: Connection) -> None:
    id_ = sent(conn)
    stop_lane(conn, id_)
    ran = succeed("holds", "dead", str(id_), "--reason", "poison", OUTBOX_DSN=database)
    assert f"message {id_} is set aside: the others go on" in ran.out
    assert requested(conn) == [4]
    again = succeed("holds", "dead", str(id_), "--reason", "poison", "--json", OUTBOX_DSN=database).json
    assert (again["result"], again["state"], again["reason"]) == ("already", "DEAD", "poison")
    go_on(conn, 4)
    before = value(conn, "SELECT position FROM outbox.message WHERE id = %s", [id_])
    assert (
        "is committed again"
        in succeed("holds", "release", str(id_), "--reason", "mended", OUTBOX_DSN=database).out
    )
    assert value(conn, "SELECT position FROM outbox.message WHERE id = %s", [id_]) > before
    stop_lane(conn, id_)
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
    first, second, other = sent(conn), sent(conn), sent(conn, lane=6)

    def refusal(id_: int, action: str = "dead") -> str:
        ran = outbox("holds", action, str(id_), "--reason", "why", OUTBOX_DSN=database)
        assert ran.code == 1, ran.out
        return ran.err

    assert f"outbox tx rollback {half}" in refusal(half)
    assert "lane 6 is not stopped at it" in refusal(other)
    stop_lane(conn, first)
    message_id = value(conn, "SELECT message_id FROM outbox.message WHERE id = %s", [first])
    text = refusal(second)
    assert f"it is not what lane 4 stopped at; that is message {message_id}" in text
    assert f"outbox holds dead {message_id}" in text
    conn.execute("UPDATE outbox.lane SET retrying_at = clock_timestamp() WHERE lane = 4")
    assert "lane 4 is trying it again; repeat in a few seconds" in refusal(first)
    error = "PARTITION_UNAVAILABLE: topic 'orders', partition 0: no acknowledgement for 10 s"
    stop_lane(conn, first, error, in_doubt=True)
    text = refusal(first)
    assert "it may be in Kafka already, because an earlier acknowledgement was lost" in text
    assert "outbox holds release --lane 4" in text
    assert f"outbox holds skip {message_id} --may-be-published" in text
    assert refusal(first, "skip") == text
    listed = succeed("holds", "ls", OUTBOX_DSN=database).out
    assert "holds dead" not in listed
    assert f"outbox holds skip {first} --may-be-published --reason TEXT" in listed
    record(conn, positions(conn, f"id = {other}"), seen=snapshot(conn), batch=1, partition=6, offset=0)
    assert "it is published at 6/0" in refusal(other)
    assert "is published already, at orders 6/0" in refusal(other, "release")


def test_a_message_that_another_transaction_holds_is_left_alone(database: str, conn: Connection) -> None:
    id_ = sent(conn)
    stop_lane(conn, id_)
    with conn.transaction():
        conn.execute("SELECT FROM outbox.lane WHERE lane = 4 FOR UPDATE")
        ran = outbox("holds", "dead", str(id_), "--reason", "why", "--wait", "0.05", OUTBOX_DSN=database)
    assert (ran.code, "run it again" in ran.err) == (1, True)
    assert value(conn, STATE, [id_]) == "COMMITTED"


def test_an_operators_login_is_enough_and_a_producers_is_not(logins: Logins, conn: Connection) -> None:
    id_ = sent(conn)
    stop_lane(conn, id_)
    given = ["holds", "dead", str(id_), "--reason", "why"]
    reader = outbox(*given, OUTBOX_DSN=logins.make("outbox_reader"))
    assert reader.code == 1
    assert value(conn, STATE, [id_]) == "COMMITTED"
    operator = logins.make("outbox_operator")
    succeed(*given, OUTBOX_DSN=operator)
    succeed("holds", "release", "--lane", "4", OUTBOX_DSN=operator)
    succeed("holds", "ls", OUTBOX_DSN=operator)
    succeed("message", "show", str(id_), OUTBOX_DSN=operator)
    half = sent(conn, state="UNKNOWN", producer_group="g")
    succeed("tx", "explain", str(half), OUTBOX_DSN=operator)
    succeed("tx", "check", str(half), OUTBOX_DSN=operator)
    succeed("tx", "commit", str(half), "--reason", "seen", OUTBOX_DSN=operator)
    succeed("group", "set", "g", "--workers", "2", OUTBOX_DSN=operator)


def test_lanes_are_listed_with_what_stopped_them_and_retried_by_request(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    id_, other = sent(conn), sent(conn, lane=6)
    stop_lane(conn, id_, MISSING)
    stop_lane(conn, other, MISSING)
    ran = succeed("holds", "ls", OUTBOX_DSN=database)
    assert "UNKNOWN_TOPIC_OR_PART" in ran.out
    assert "create the topic: outbox topic create orders" in ran.out
    assert f"outbox holds dead {id_} --reason TEXT" in ran.out
    held = succeed("holds", "ls", "--json", OUTBOX_DSN=database).json
    assert [(one["kind"], one["lanes"], one["id"], one["topic"]) for one in held] == [
        ("lane", [4], id_, "orders"),
        ("lane", [6], other, "orders"),
    ]
    assert "nothing of that is held" in succeed("holds", "release", "--lane", "3", OUTBOX_DSN=database).out
    assert outbox("holds", "release", OUTBOX_DSN=database).code == 2
    succeed("holds", "release", "--lane", "4", OUTBOX_DSN=database)
    assert requested(conn) == [4]
    assert released(database, "--all") == [[4], [6]]


def test_the_stop_of_a_lane_is_released_by_its_message(database: str, conn: Connection) -> None:
    own_lanes(conn)
    id_, behind, elsewhere = sent(conn), sent(conn), sent(conn, lane=6)
    stop_lane(conn, id_, MISSING)
    assert "with all of lane 4" in succeed("holds", "release", str(behind), OUTBOX_DSN=database).out
    assert requested(conn) == [4]
    refused = outbox("holds", "release", str(elsewhere), OUTBOX_DSN=database)
    assert (refused.code, "is held by nothing" in refused.err) == (1, True)


def released(database: str, *options: str) -> list[list[int]]:
    """Release holds; return the lanes of each for which that was done."""
    document = succeed("holds", "release", *options, "--json", OUTBOX_DSN=database).json
    assert document["left"] == []
    return [one["lanes"] for one in document["released"]]


def test_a_locked_lane_is_named_with_its_holder_and_the_others_are_requested(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    stop_lane(conn, sent(conn), MISSING)
    stop_lane(conn, sent(conn, lane=6), MISSING)
    with holding(database, "SELECT FROM outbox.lane WHERE lane = 4 FOR UPDATE") as other:
        ran = outbox("holds", "release", "--all", OUTBOX_DSN=database)
        assert ran.code == 1
        assert "lane 4 cannot be changed: another transaction holds the row" in ran.err
        assert f"(pid {other.info.backend_pid}, " in ran.err
        assert "a retry of 6 is requested" in ran.err
        assert "then: outbox holds release --lane 4;" in ran.err
        assert requested(conn) == [6]
    assert released(database, "--lane", "4") == [[4]]


def test_a_retry_without_a_relay_says_that_none_runs(database: str, conn: Connection) -> None:
    assert "nothing of that is held" in succeed("holds", "release", "--all", OUTBOX_DSN=database).out
    stop_lane(conn, sent(conn))
    assert "no relay runs" in succeed("holds", "release", "--all", OUTBOX_DSN=database).err


@pytest.mark.parametrize("foreign", [None, "0192d3f0-0000-7000-8000-000000000001"])
def test_explain_and_show_name_the_stopped_lane(database: str, conn: Connection, foreign: str | None) -> None:
    own_lanes(conn)
    given: dict[str, Any] = {} if foreign is None else {"message_id": foreign}
    cause = sent(conn, state="UNKNOWN", producer_group="shop", **given)
    behind = sent(conn, state="UNKNOWN", producer_group="shop")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED'")
    assert "as soon as the relay gets to it" in succeed("tx", "explain", str(behind), OUTBOX_DSN=database).out
    stop_lane(conn, cause, MISSING)
    for words in (("tx", "explain"), ("message", "show")):
        told = " ".join(succeed(*words, str(behind), OUTBOX_DSN=database).out.split())
        assert "lane 4 is held since 20" in told
        assert f"at message {cause}, in front of it: UNKNOWN_TOPIC_OR_PART" in told
        assert "outbox topic create orders" in told
        assert f"outbox holds dead {cause} --reason TEXT" in told
        told = " ".join(succeed(*words, str(cause), OUTBOX_DSN=database).out.split())
        assert "cannot be published, and lane 4 is held at it since 20" in told
    document = succeed("tx", "explain", str(behind), "--json", OUTBOX_DSN=database).json
    assert [step["what"] for step in document["next"]] == ["held"]
    assert document["next"][0]["alarm"] is True
    assert succeed("message", "show", str(behind), "--json", OUTBOX_DSN=database).json["hold"]["id"] == cause


def test_a_lane_that_waits_for_a_partition_names_no_message(database: str, conn: Connection) -> None:
    own_lanes(conn)
    id_ = sent(conn, state="UNKNOWN", producer_group="shop")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED'")
    conn.execute(
        "UPDATE outbox.lane SET stopped_error = 'PARTITION_UNAVAILABLE: t/0', stopped_at = now() WHERE lane = 4"
    )
    for words in (("tx", "explain"), ("message", "show")):
        told = " ".join(succeed(*words, str(id_), OUTBOX_DSN=database).out.split())
        assert "Z: PARTITION_UNAVAILABLE: t/0" in told
        assert "None" not in told


def test_explain_of_a_dead_message_names_its_ways_out(database: str, conn: Connection) -> None:
    id_ = sent(conn, state="UNKNOWN", producer_group="shop")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED'")
    set_aside(conn, id_)
    told = succeed("tx", "explain", str(id_), OUTBOX_DSN=database).out
    assert f"outbox holds release {id_}" in told
    assert f"outbox holds skip {id_}" in told


def test_a_group_is_bound_to_a_role_and_freed(database: str, conn: Connection) -> None:
    ran = succeed("group", "set", "shop", "--role", "Shop writers", OUTBOX_DSN=database)
    assert "members of Shop writers, checkers, operators" in ran.out
    assert value(conn, "SELECT role FROM outbox.producer_group") == "Shop writers"
    succeed("group", "set", "shop", "--workers", "2", OUTBOX_DSN=database)
    assert value(conn, "SELECT role FROM outbox.producer_group") == "Shop writers"
    succeed("group", "set", "shop", "--role", "", OUTBOX_DSN=database)
    assert value(conn, "SELECT role FROM outbox.producer_group") is None
