"""`outbox tx commit` and `rollback`: decided once, with a reason, never under a running local transaction's feet."""

from __future__ import annotations

import os
import pwd
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox import Outbox
from outbox.errors import DecidedOtherwiseError
from outbox.operations.decide import DecidedState
from outbox_relay.database import connections
from outbox_relay.operations import bulk_decisions
from outbox_relay.operations.half_messages import HalfMessageFilter
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, decide, insert, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

USER = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(autouse=True)
def without_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SUDO_USER", raising=False)


def half(conn: Connection, group: str = "shop", **columns: Any) -> str:
    return insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group=group, **columns)


def exhausted(conn: Connection, group: str = "shop") -> str:
    message_id = half(conn, group)
    decide(conn, message_id, "EXHAUSTED")
    return message_id


def states(conn: Connection, column: str = "state") -> list[str]:
    rows = conn.execute(f"SELECT {column} FROM outbox.message ORDER BY id").fetchall()
    return [row[0] for row in rows]


def number(conn: Connection, message_id: str) -> str:
    return str(value(conn, "SELECT id FROM outbox.message WHERE message_id = %s", [message_id]))


@pytest.mark.feature("S-27")
@pytest.mark.parametrize(
    ("command", "state"), [("commit", "COMMITTED"), ("rollback", "ROLLED_BACK")], ids=["commit", "rollback"]
)
@pytest.mark.parametrize("before", ["UNKNOWN", "EXHAUSTED"])
def test_an_operators_verdict_is_audited_with_who_and_why(
    database: str, conn: Connection, command: str, state: str, before: str
) -> None:
    message_id = half(conn) if before == "UNKNOWN" else exhausted(conn)
    ran = succeed("tx", command, message_id, "--reason", "see invoice 17", OUTBOX_DSN=database)
    assert number(conn, message_id) in ran.out
    assert states(conn) == [state]
    assert states(conn, "remark") == ["see invoice 17"]
    row = conn.execute(
        "SELECT from_state, to_state, actor, reason FROM outbox.event ORDER BY happened_at DESC LIMIT 1"
    ).fetchone()
    session_user = value(conn, "SELECT session_user::text")
    assert row == (before, state, f"operator:{USER} ({session_user})", "see invoice 17")


def test_behind_sudo_the_caller_is_named(
    database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    message_id = half(conn)
    succeed("tx", "commit", message_id, "--reason", "r", OUTBOX_DSN=database)
    actor = value(conn, "SELECT actor FROM outbox.event WHERE to_state = 'COMMITTED'")
    assert actor.startswith(f"operator:alice (sudo {USER})")


def test_the_same_verdict_twice_is_fine_and_says_who_was_first(database: str, conn: Connection) -> None:
    message_id = exhausted(conn)
    succeed("tx", "commit", message_id, "--reason", "first", OUTBOX_DSN=database)
    again = succeed("tx", "commit", message_id, "--reason", "second", OUTBOX_DSN=database)
    assert "was committed before at 20" in again.out
    assert f"by operator:{USER}" in again.out
    assert "(first)" in again.out
    assert states(conn, "remark") == ["first"]
    assert value(conn, "SELECT count(*) FROM outbox.event WHERE to_state = 'COMMITTED'") == 1


@pytest.mark.feature("S-14")
@pytest.mark.parametrize("before", ["UNKNOWN", "EXHAUSTED"])
def test_the_opposite_verdict_is_refused_with_who_when_and_why(
    database: str, conn: Connection, before: str
) -> None:
    message_id = half(conn) if before == "UNKNOWN" else exhausted(conn)
    succeed("tx", "rollback", message_id, "--reason", "card was declined", OUTBOX_DSN=database)
    ran = outbox("tx", "commit", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 1
    for part in ("cannot be committed", "rolled back at 20", f"by operator:{USER}", "card was declined"):
        assert part in ran.err
    assert states(conn) == ["ROLLED_BACK"]


@pytest.mark.feature("S-14")
def test_a_late_commit_of_the_producer_meets_the_operators_verdict(database: str, conn: Connection) -> None:
    message_id = half(conn)
    succeed("tx", "rollback", message_id, "--reason", "producer is gone", OUTBOX_DSN=database)
    with (
        pytest.raises(DecidedOtherwiseError, match=rf"operator:{USER}.*producer is gone"),
        conn.transaction(),
    ):
        Outbox().commit(conn, message_id)


def test_a_running_local_transaction_is_named_and_left_alone(database: str, conn: Connection) -> None:
    message_id = half(conn)
    with psycopg.connect(database, application_name="shop-7") as local:
        Outbox().join(local, message_id)
        ran = outbox("tx", "commit", message_id, "--reason", "r", "--wait", "0", OUTBOX_DSN=database)
        assert ran.code == 1
        for part in (
            "running local transaction since 20",
            f"pid {local.info.backend_pid}",
            "shop-7",
            "--wait",
        ):
            assert part in ran.err
        assert states(conn) == ["UNKNOWN"]
        Outbox().rollback(local, message_id, remark="changed my mind")
    assert states(conn) == ["ROLLED_BACK"]


@pytest.mark.parametrize("kept", [True, False], ids=["commits", "aborts"])
def test_a_local_transaction_is_waited_for_and_its_verdict_wins(
    database: str, conn: Connection, kept: bool
) -> None:
    message_id = half(conn)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    with psycopg.connect(database) as local, ThreadPoolExecutor() as pool:
        Outbox().join(local, message_id)
        Outbox().rollback(local, message_id, remark="declined")
        command = pool.submit(
            outbox, "tx", "commit", message_id, "--reason", "r", "--wait", "60", OUTBOX_DSN=database
        )
        wait_until(lambda: value(conn, waiting) == 1, "the operator waits")
        (local.commit if kept else local.rollback)()
        ran = command.result(60)
    assert ran.code == (1 if kept else 0)
    assert ("declined" in ran.err) is kept
    assert states(conn) == ["ROLLED_BACK" if kept else "COMMITTED"]


def test_of_two_operators_with_opposite_verdicts_one_wins(database: str, conn: Connection) -> None:
    halves = [exhausted(conn) for _ in range(8)] + [half(conn) for _ in range(8)]
    for message_id in halves:
        with ThreadPoolExecutor() as pool:
            both = [
                pool.submit(outbox, "tx", verb, message_id, "--reason", verb, OUTBOX_DSN=database)
                for verb in ("commit", "rollback")
            ]
            codes = [one.result(60).code for one in both]
        assert sorted(codes) == [0, 1]
        won = "COMMITTED" if codes[0] == 0 else "ROLLED_BACK"
        assert value(conn, "SELECT state FROM outbox.message WHERE message_id = %s", [message_id]) == won
    assert (
        value(conn, "SELECT count(*) FROM outbox.event WHERE to_state IN ('COMMITTED', 'ROLLED_BACK')") == 16
    )


def test_a_reason_is_required_and_has_to_tell_something(database: str, conn: Connection) -> None:
    message_id = half(conn)
    assert outbox("tx", "commit", message_id, OUTBOX_DSN=database).code == 2
    for reason, told in ((" ", "--reason is empty"), ("x" * 501, "500 are kept")):
        ran = outbox("tx", "commit", message_id, "--reason", reason, OUTBOX_DSN=database)
        assert ran.code == 2
        assert told in ran.err
    assert states(conn) == ["UNKNOWN"]


def test_what_was_sent_has_nothing_to_decide(database: str, conn: Connection) -> None:
    message_id = insert(conn, "orders", "k", "b", producer_group="shop")
    for command in (["commit", message_id, "--reason", "r"], ["explain", message_id], ["show", message_id]):
        ran = outbox("tx", *command, OUTBOX_DSN=database)
        assert ran.code == 1
        assert "is not a half message" in ran.err
    ran = outbox("tx", "commit", "4711", "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "there is no message 4711" in ran.err


def test_several_are_asked_about_and_each_is_told(database: str, conn: Connection) -> None:
    first, second, third = half(conn), exhausted(conn), half(conn)
    succeed("tx", "rollback", third, "--reason", "declined", OUTBOX_DSN=database)
    ids = [first, number(conn, first), second, third]
    ran = outbox("tx", "commit", *ids, "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 2
    assert "give --yes" in ran.err
    assert states(conn) == ["UNKNOWN", "EXHAUSTED", "ROLLED_BACK"]
    ran = outbox("tx", "commit", *ids, "--reason", "r", "--yes", OUTBOX_DSN=database)
    assert ran.code == 1
    assert states(conn) == ["COMMITTED", "COMMITTED", "ROLLED_BACK"]
    assert "2 committed, 1 not" in ran.out
    ran = outbox("tx", "commit", *ids, "--reason", "r", "--yes", "--json", OUTBOX_DSN=database)
    assert [one["result"] for one in ran.json] == ["already", "already", "otherwise"]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--all"],
        ["--all", "--group", "shop"],
        ["--all", "--state", "EXHAUSTED"],
        ["1", "--all", "--group", "shop", "--state", "EXHAUSTED"],
        ["1", "--topic", "orders"],
    ],
)
def test_a_selection_has_to_be_named_in_full(database: str, options: list[str]) -> None:
    ran = outbox("tx", "commit", *options, "--reason", "r", "--yes", OUTBOX_DSN=database)
    assert ran.code == 2


@pytest.mark.parametrize("verdict", ["commit", "rollback"])
def test_a_group_that_nothing_knows_is_an_error_of_a_bulk_decision(
    database: str, conn: Connection, verdict: str
) -> None:
    exhausted(conn, "shop")
    options = ["--all", "--state", "EXHAUSTED", "--reason", "bank confirmed", "--yes"]
    ran = outbox("tx", verdict, *options, "--group", "shpo", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "there is no producer group 'shpo'. Did you mean 'shop'?" in ran.err
    conn.execute("INSERT INTO outbox.producer_group (name) VALUES ('idle')")
    assert (
        "no half message fits" in succeed("tx", verdict, *options, "--group", "idle", OUTBOX_DSN=database).err
    )
    assert states(conn) == ["EXHAUSTED"]


def test_all_that_fit_are_decided_and_nothing_else(database: str, conn: Connection) -> None:
    for group in ("shop", "shop", "other"):
        exhausted(conn, group)
        half(conn, group)
    options = ["--all", "--group", "shop", "--state", "EXHAUSTED", "--reason", "bank confirmed"]
    refused = outbox("tx", "commit", *options, OUTBOX_DSN=database)
    assert refused.code == 2
    assert "2 half messages of group 'shop', state EXHAUSTED" in refused.err
    assert "2 committed" in succeed("tx", "commit", *options, "--yes", OUTBOX_DSN=database).out
    assert states(conn) == ["COMMITTED", "UNKNOWN", "COMMITTED", "UNKNOWN", "EXHAUSTED", "UNKNOWN"]
    assert succeed("tx", "commit", *options, "--yes", "--json", OUTBOX_DSN=database).json == {
        "decided": 0,
        "held": [],
    }


def test_a_selection_is_decided_page_by_page_and_passes_over_what_is_held(
    database: str, conn: Connection
) -> None:
    conn.execute(
        "INSERT INTO outbox.message (topic, state, producer_group) "
        "SELECT 'orders', 'UNKNOWN', 'shop' FROM generate_series(1, 1200)"
    )
    held = value(conn, "SELECT message_id FROM outbox.message ORDER BY id OFFSET 700 LIMIT 1")
    options = ["--all", "--group", "shop", "--state", "UNKNOWN", "--reason", "r", "--yes"]
    with psycopg.connect(database) as local:
        Outbox().join(local, held)
        ran = outbox("tx", "rollback", *options, OUTBOX_DSN=database)
        assert ran.code == 1
        assert "1,199 rolled back" in ran.out
        assert (
            f"1 passed over, locked or decided by somebody else meanwhile: {number(conn, str(held))};"
            in ran.err
        )
    assert states(conn).count("UNKNOWN") == 1
    succeed("tx", "rollback", *options, OUTBOX_DSN=database)
    assert set(states(conn)) == {"ROLLED_BACK"}
    assert value(conn, "SELECT count(*) FROM outbox.event WHERE to_state = 'ROLLED_BACK'") == 1200


def test_what_comes_after_the_operator_was_asked_is_left_alone(database: str, conn: Connection) -> None:
    late = half(conn)
    exhausted(conn)
    with connections.connect(database) as operator:
        chosen = HalfMessageFilter(producer_group="shop", states=("EXHAUSTED",))
        many = bulk_decisions.count_chosen(operator, chosen)
        assert many.messages == 1
        decide(conn, late, "EXHAUSTED")
        exhausted(conn)
        done = bulk_decisions.decide(operator, chosen, many, DecidedState.COMMITTED, "r")
    assert (done.decided, done.held) == (1, [])
    assert states(conn) == ["EXHAUSTED", "COMMITTED", "EXHAUSTED"]


def test_the_checkers_role_is_enough_to_decide(database: str, conn: Connection) -> None:
    dsn = make_conninfo(database, options="-c role=outbox_checker")
    first, second = half(conn), exhausted(conn)
    for message_id in (first, second):
        succeed("tx", "commit", message_id, "--reason", "r", OUTBOX_DSN=dsn)
    third = half(conn)
    succeed("tx", "check", third, OUTBOX_DSN=dsn)
    exhausted(conn)
    options = ["--all", "--group", "shop", "--state", "EXHAUSTED", "--reason", "r", "--yes"]
    succeed("tx", "rollback", *options, OUTBOX_DSN=dsn)
    assert states(conn) == ["COMMITTED", "COMMITTED", "UNKNOWN", "ROLLED_BACK"]


@pytest.mark.feature("S-51")
def test_what_is_exhausted_reaches_kafka_only_by_an_operators_commit(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    kept, dropped = (insert(conn, topic, "k", "b", state="UNKNOWN", producer_group="shop") for _ in range(2))
    for message_id in (kept, dropped):
        decide(conn, message_id, "EXHAUSTED")
    with RelayProcess(database, bootstrap_servers) as relay:
        later = insert(conn, topic, "k", "after them")
        wait_published(conn)
        published = "SELECT array_agg(message_id::text) FROM outbox.message_status WHERE status = 'PUBLISHED'"
        assert value(conn, published) == [later]
        succeed("tx", "rollback", dropped, "--reason", "declined", OUTBOX_DSN=database)
        succeed("tx", "commit", kept, "--reason", "paid", OUTBOX_DSN=database)
        wait_published(conn)
        assert sorted(value(conn, published)) == sorted([kept, later])
        relay.stop()
    told = succeed("tx", "explain", kept, OUTBOX_DSN=database).out
    assert f"published to {topic}, partition " in told


def test_a_verdict_is_flushed_whatever_the_databases_default(database: str, conn: Connection) -> None:
    name = conn.info.dbname
    conn.execute(f'ALTER DATABASE "{name}" SET synchronous_commit = off'.encode())
    message_id = half(conn)
    conn.execute(
        "CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "NEW.remark := current_setting('synchronous_commit'); RETURN NEW; END $$; "
        "CREATE TRIGGER note BEFORE UPDATE ON outbox.message FOR EACH ROW EXECUTE FUNCTION public.note()"
    )
    succeed("tx", "commit", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert states(conn, "remark") == ["on"]
