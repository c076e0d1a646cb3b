"""The first line of `outbox status` is a verdict, and `--check` turns it into an exit code for monitoring."""

from __future__ import annotations

import json
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, insert
from tests.support.publications import own_lanes


def verdict(database: str, *options: str) -> tuple[int, list[str]]:
    """The exit code and the lines of `outbox status --check`."""
    ran = outbox("status", "--check", *options, OUTBOX_DSN=database)
    return ran.code, ran.out.splitlines()


def kinds(database: str) -> list[str]:
    found: dict[str, Any] = outbox("status", "--check", "--json", OUTBOX_DSN=database).json
    assert found["healthy"] == (not found["problems"])
    return [one["kind"] for one in found["problems"]]


def test_an_outbox_with_a_relay_and_nothing_to_repair_is_healthy(database: str, conn: Connection) -> None:
    own_lanes(conn)
    assert verdict(database) == (0, ["healthy"])
    lines = succeed("status", OUTBOX_DSN=database).out.splitlines()
    assert lines[0] == "healthy"
    assert any(line.startswith("lanes       8 running, owner relay-1, lease ") for line in lines)
    assert not any(line.startswith("LANE ") for line in lines)
    assert json.loads(succeed("status", "--json", OUTBOX_DSN=database).out)["healthy"] is True


def test_a_missing_relay_is_a_problem_before_the_first_message_waits(database: str, conn: Connection) -> None:
    assert verdict(database) == (1, ["PROBLEM: no relay runs: outbox relay run"])
    insert(conn, "orders", "k", "b")
    assert verdict(database)[1] == ["PROBLEM: no relay runs, and 1 message to publish: outbox relay run"]
    assert outbox("status", OUTBOX_DSN=database).code == 0


def test_a_relay_whose_lease_ended_does_not_run(database: str, conn: Connection) -> None:
    own_lanes(conn)
    conn.execute("UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 second'")
    assert kinds(database) == ["no_relay"]


def test_lanes_are_listed_one_by_one_when_they_differ(database: str, conn: Connection) -> None:
    own_lanes(conn)
    conn.execute("UPDATE outbox.lane SET owner = NULL WHERE lane = 3")
    lines = succeed("status", OUTBOX_DSN=database).out.splitlines()
    assert lines[0] == "PROBLEM: no relay runs for lane 3: outbox relay run"
    assert sum(" relay-1 " in line for line in lines) == 7


def test_a_lane_that_an_older_relay_stopped_is_a_problem(database: str, conn: Connection) -> None:
    own_lanes(conn)
    conn.execute(
        "UPDATE outbox.lane SET stopped_error = 'SELECTOR_FAILED: odd', stopped_at = now() WHERE lane IN (3, 4)"
    )
    _, lines = verdict(database)
    assert lines[0].startswith(
        "PROBLEM: a relay of an older version has stopped lane 3, 4: nothing of it is published"
    )
    assert kinds(database) == ["older_relay"]
    assert succeed("holds", "ls", OUTBOX_DSN=database).out == "nothing is held\n"


def test_a_message_that_waits_too_long_beside_a_running_relay_is_a_problem(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    insert(conn, "orders", "k", "b", born_at="2026-01-01")
    assert kinds(database) == ["late"]
    ages = outbox("status", "--check", "--max-age", str(20 * 86_400), OUTBOX_DSN=database)
    assert "a message has waited for" in ages.out


def test_half_messages_that_nobody_asks_about_name_the_checker(database: str, conn: Connection) -> None:
    own_lanes(conn)
    insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="g")
    assert kinds(database) == []
    conn.execute("UPDATE outbox.message SET born_at = '2026-01-01'")
    code, lines = verdict(database)
    assert code == 1
    assert lines == [
        "PROBLEM: no checker asks about 1 overdue half message (outbox tx ls --overdue): outbox checker run"
    ]


def test_the_command_of_an_alarm_quotes_the_groups_name(database: str, conn: Connection) -> None:
    own_lanes(conn)
    conn.execute("INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('$(id);a', 'failing', 'x')")
    assert verdict(database)[1][0].endswith(": outbox group show '$(id);a'")


def test_an_alarm_of_one_group_does_not_hide_another_groups_missing_checker(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    for group in ("named", "unnamed"):
        insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group=group)
    conn.execute("UPDATE outbox.message SET born_at = '2026-01-01'")
    conn.execute("INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('named', 'failing', 'x')")
    assert kinds(database) == ["alarm", "no_checker"]


def test_what_is_left_to_an_operator_is_a_problem(database: str, conn: Connection) -> None:
    own_lanes(conn)
    for group in ("a", "b"):
        insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group=group)
    conn.execute("UPDATE outbox.message SET state = 'EXHAUSTED' WHERE producer_group = 'a'")
    assert kinds(database) == ["exhausted"]


def test_the_reader_role_gets_the_same_verdict(database: str, conn: Connection) -> None:
    own_lanes(conn)
    reader = make_conninfo(database, options="-c role=outbox_reader")
    assert verdict(reader) == (0, ["healthy"])
    conn.execute("UPDATE outbox.lane SET owner = NULL")
    assert verdict(reader)[0] == 1


@pytest.mark.parametrize(
    ("options", "code"),
    [(["--watch", "1"], 2), (["--max-age", "nan"], 2), (["--max-age", "0"], 2)],
)
def test_a_check_with_wrong_options_ends_with_2(database: str, options: list[str], code: int) -> None:
    assert verdict(database, *options)[0] == code


def test_a_check_of_a_database_that_is_away_ends_with_1() -> None:
    ran = outbox("status", "--check", OUTBOX_DSN="postgresql://u@127.0.0.1:1/x")
    assert (ran.code, ran.out) == (1, "")
    assert "cannot reach" in ran.err
