"""`outbox doctor`: each finding is one that was there, and a half message is found by a checker or is rolled back."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from outbox import Outbox
from outbox_relay.database import connections
from outbox_relay.operations import doctor
from tests.support.checker_process import CheckerProcess
from tests.support.databases import with_database
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import connect
from tests.support.servers import MakeDatabase, MakeTopic

Found = dict[str, list[dict[str, Any]]]


def examined(dsn: str, *options: str) -> Found:
    """Return the checks by name."""
    ran = outbox("doctor", "--json", *options, OUTBOX_DSN=dsn)
    found: Found = {}
    for check in ran.json["checks"]:
        found.setdefault(check["name"], []).append(check)
    failed = any(check["level"] == "FAILED" for checks in found.values() for check in checks)
    assert ran.code == int(failed)
    return found


@pytest.mark.feature("S-54")
def test_a_checker_finds_the_half_message_of_the_test(database: str) -> None:
    with CheckerProcess(database):
        (check,) = examined(database, "--half-message", "60")["half message"]
    assert check["level"] == "ok"
    assert "checker:outbox-doctor@" in check["found"]


def test_a_checker_without_a_login_for_queries_is_found_too(database: str) -> None:
    with CheckerProcess(database, variables={"OUTBOX_CALLBACK_DSN": ""}):
        (check,) = examined(database, "--half-message", "120")["half message"]
    assert (check["level"], "no --callback-dsn" in check["found"]) == ("ok", True)
    with connect(database) as conn:
        assert conn.execute("SELECT state FROM outbox.message").fetchall() == [("ROLLED_BACK",)]


@pytest.mark.feature("S-54")
def test_without_a_checker_the_test_fails_and_leaves_nothing_undecided(database: str) -> None:
    (check,) = examined(database, "--half-message", "1")["half message"]
    assert check["level"] == "FAILED"
    assert "outbox checker run" in check["repair"]
    with connect(database) as conn:
        assert conn.execute("SELECT state, count(*) FROM outbox.message GROUP BY 1").fetchall() == [
            ("ROLLED_BACK", 1)
        ]


def test_a_checker_that_decides_while_the_test_gives_up_is_no_error(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedule: the wait ends, the checker rolls back, and then the test does the same."""

    def decided_meanwhile(self: Any, conn: psycopg.Connection[Any], half: Any, *, remark: str) -> None:
        with connect(database) as checker, checker.transaction():
            original(self, checker, half)
        original(self, conn, half, remark=remark)

    original: Any = Outbox.rollback
    monkeypatch.setattr(Outbox, "rollback", decided_meanwhile)
    with connect(database) as conn:
        check = doctor._half_message(conn, 0.2)
        assert conn.execute("SELECT DISTINCT state FROM outbox.message").fetchall() == [("ROLLED_BACK",)]
    assert check.level == "FAILED"


def test_only_the_half_message_writes_anything(database: str) -> None:
    written = "SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables"
    with connect(database) as conn:
        conn.execute("SELECT pg_stat_force_next_flush()")
        before = conn.execute(written).fetchone()
        examined(database)
        conn.execute("SELECT pg_stat_force_next_flush()")
        assert conn.execute(written).fetchone() == before


def test_a_database_without_the_schema_is_reported_with_the_command(make_database: MakeDatabase) -> None:
    found = examined(make_database(migrated=False))
    assert found["schema"][0]["level"] == "FAILED"
    assert "outbox db upgrade" in found["schema"][0]["repair"]
    assert "now" not in found, "nothing is asked of tables that are not there"


def test_topics_that_kafka_has_not_or_has_smaller_are_named(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    smaller = make_topic(partitions=2)
    with connect(database) as conn:
        conn.execute(
            "INSERT INTO outbox.topic (name, partitions) VALUES ('never-made', 3), (%s, 12)", [smaller]
        )
    found = examined(database, "--bootstrap-servers", bootstrap_servers)
    texts = {check["found"]: check["level"] for check in found["topic"]}
    assert texts["never-made is registered and Kafka has none"] == "FAILED"
    assert texts[f"{smaller} has 2 partitions in Kafka and is pinned to 12"] == "FAILED"


def test_a_broker_that_is_away_is_reported(database: str) -> None:
    (check,) = examined(database, "--bootstrap-servers", "127.0.0.1:1")["kafka"]
    assert check["level"] == "FAILED"
    assert "cannot reach Kafka" in check["found"]


def test_what_holds_old_rows_is_named_with_what_ends_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "HELD_S", 0.0)
    with psycopg.connect(database, application_name="nightly report") as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1")
        found = examined(database)["old rows"]
        pid = holder.info.backend_pid
    (check,) = [check for check in found if f"session {pid} (nightly report)" in check["found"]]
    assert check["level"] == "warning"
    assert check["repair"] == f"end it: SELECT pg_terminate_backend({pid})"


def test_a_user_without_a_role_and_a_superuser_are_warned_of(database: str) -> None:
    logins = Logins(database)
    try:
        reader = logins.make("outbox_reader")
        with connect(database) as conn:
            conn.execute(f'REVOKE outbox_reader FROM "{logins.newest}"'.encode())
        with connections.connect(reader) as conn:
            (check,) = [check for check in doctor._session(conn) if check.name == "rights"]
        assert "has no role of the outbox" in check.found
        with connect(database) as conn:
            conn.execute(f'GRANT outbox_reader TO "{logins.newest}"'.encode())
        with connections.connect(reader) as conn:
            (check,) = [check for check in doctor._session(conn) if check.name == "rights"]
        assert (check.level, check.found) == ("ok", f"{logins.newest}: outbox_reader")
    finally:
        logins.drop()
    assert "superuser" in examined(database)["rights"][0]["found"]


def test_clocks_that_differ_are_reported(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 5)
    (check,) = examined(database)["clock"]
    assert check["level"] == "warning"
    assert "5.0 s" in check["found"]


def test_a_pooler_that_divides_sessions_is_found(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a pooler gives the server's process to another client between two statements, and resets it before."""
    with connect(database) as conn:
        assert doctor._pooler(database, conn).level == "ok"

        def connected(dsn: str) -> connections.Connection:
            conn.execute("RESET ALL")
            return original(dsn)

        original = connections.connect
        monkeypatch.setattr(connections, "connect", connected)
        check = doctor._pooler(database, conn)
    assert check.level == "FAILED"
    assert "session mode" in (check.repair or "")


def test_no_database_to_ask_is_one_error(database: str) -> None:
    ran = outbox("doctor", OUTBOX_DSN=with_database(database, "none"))
    assert ran.code == 1
    assert "none" in ran.err


def test_the_table_lists_checks_and_then_what_repairs_them(database: str) -> None:
    ran = outbox("doctor", OUTBOX_DSN=database)
    lines = ran.out.splitlines()
    assert any(line.startswith("schema") and " ok " in line for line in lines)
    assert "now: outbox relay run" in lines
    assert succeed("doctor", "--help").out.count("outbox doctor") >= 2
