"""Asking by a query: read-only, bound, within the deadline; all that is no clear answer is UNKNOWN."""

from __future__ import annotations

import select
import time
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outbox.checking import Answer, FailedAnswer, LocalTransactionState
from outbox_local.stack.api import Stack
from outbox_relay.checker.askers.sql import SqlAsker
from outbox_relay.checker.callback import SqlCallback, read_callback
from tests.support.callback_peer import a_view
from tests.support.stopwatch import Stopwatch
from tests.support.waiting import wait_until

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState
NO_STATE = "answer is not a state: expected COMMIT, ROLLBACK or UNKNOWN, got"


def make_asker(dsn: str, query: str, environment: dict[str, str] | None = None, **fields: Any) -> SqlAsker:
    callback = read_callback({"kind": "sql", "query": query, **fields})
    assert isinstance(callback, SqlCallback)
    return SqlAsker(callback, dsn, environment or {})


def ask(asker: SqlAsker, seconds: float = 10.0, **view: Any) -> Answer:
    try:
        return asker.ask(a_view(**view), time.monotonic() + seconds)
    finally:
        asker.close()


@pytest.fixture
def shop(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("CREATE TABLE payment (id text, number bigint, state text)")
        conn.execute("INSERT INTO payment VALUES ('p-7', 7, 'paid')")
        yield conn


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(
    ("query", "answer"),
    [
        ("SELECT state = 'paid' FROM payment WHERE id = %(biz_id)s", Answer(COMMIT)),
        ("SELECT state <> 'paid' FROM payment WHERE id = %(key)s", Answer(ROLLBACK)),
        ("SELECT 'COMMIT_MESSAGE' FROM payment WHERE number = 7 AND %(topic)s = 'payments'", Answer(COMMIT)),
        ("SELECT 'rollback' WHERE %(tags)s::text[] @> '{支付}'", Answer(ROLLBACK)),
        ("SELECT %(message_id)s = '00000000-0007-8000-8000-000000000001'::uuid", Answer(COMMIT)),
        ("SELECT %(transaction_id)s::text IS NULL", Answer(COMMIT)),
        ("SELECT 'a' LIKE 'a%%'", Answer(COMMIT)),
        ("SELECT true", Answer(COMMIT)),
        ("SELECT 'UNKNOWN'", Answer(UNKNOWN)),
        ("SELECT state = 'paid' FROM payment WHERE id = 'other'", Answer(UNKNOWN, "query: it found no row")),
        ("SELECT NULL", Answer(UNKNOWN, "answer is None")),
        ("SELECT 1", Answer(UNKNOWN, f"{NO_STATE} an object of int")),
        ("SELECT 'paid'", Answer(UNKNOWN, f"{NO_STATE} another text")),
        ("SELECT true, true", Answer(UNKNOWN, "query: its row has 2 columns, not one")),
        ("SELECT", Answer(UNKNOWN, "query: its row has 0 columns, not one")),
        (
            "SELECT generate_series(1, 1000000000) > 0",
            Answer(UNKNOWN, "query: it found more than one row"),
        ),
        (
            "SELECT no_such_column",
            Answer(
                UNKNOWN, 'query: UndefinedColumn (SQLSTATE 42703): column "no_such_column" does not exist'
            ),
        ),
        (
            "SELECT 1 / number FROM payment WHERE number < 0 OR 1 / 0 > 0",
            Answer(UNKNOWN, "query: DivisionByZero (SQLSTATE 22012)"),
        ),
    ],
)
def test_one_row_and_one_column_are_an_answer(database: str, query: str, answer: Answer) -> None:
    asker = make_asker(database, query)
    assert asker.ask(a_view(), time.monotonic() + 10) == answer
    # Whatever it came to, the connection serves the next question.
    assert ask(asker) == answer


@pytest.mark.parametrize(
    ("query", "remark"),
    [
        ("SELECT email::int > 0 FROM payer", "InvalidTextRepresentation (SQLSTATE 22P02)"),
        ("SELECT replace(email, '.', '_')::regclass IS NULL FROM payer", "UndefinedTable (SQLSTATE 42P01)"),
        ("SELECT told(email) FROM payer", "InsufficientPrivilege (SQLSTATE 42501)"),
        ("SELECT told_again(email) FROM payer", "RaiseException (SQLSTATE P0001)"),
    ],
)
def test_an_error_of_the_database_is_kept_without_values_of_rows(
    database: str, shop: psycopg.Connection[Any], query: str, remark: str
) -> None:
    shop.execute("CREATE TABLE payer (email text)")
    shop.execute("INSERT INTO payer VALUES ('alice@example.com')")
    for name, code in (("told", "42501"), ("told_again", "P0001")):
        shop.execute(
            f"CREATE FUNCTION {name}(text) RETURNS boolean LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION 'no: %', $1 USING ERRCODE = '{code}', DETAIL = $1; END $$".encode()
        )
    assert ask(make_asker(database, query)) == (UNKNOWN, f"query: {remark}")


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("query", ["SELECT state FROM payment", "SELECT number FROM payment"])
def test_a_value_that_is_not_a_state_is_a_failed_check_and_not_quoted(database: str, query: str) -> None:
    answer = ask(make_asker(database, query))
    assert isinstance(answer, FailedAnswer)
    assert "paid" not in str(answer.remark)


@pytest.mark.usefixtures("shop")
def test_null_and_no_row_are_answers_and_no_failures(database: str) -> None:
    for query in ("SELECT NULL", "SELECT true WHERE false"):
        assert not isinstance(ask(make_asker(database, query)), FailedAnswer)


def test_a_message_is_bound_and_never_part_of_the_query(database: str, shop: psycopg.Connection[Any]) -> None:
    asker = make_asker(database, "SELECT state = 'paid' FROM payment WHERE id = %(biz_id)s")
    assert ask(asker, biz_id="' OR true; DROP TABLE payment --").state is UNKNOWN
    assert shop.execute("SELECT count(*) FROM payment").fetchone() == (1,)


@pytest.mark.parametrize(
    "query",
    [
        "WITH gone AS (DELETE FROM payment RETURNING true) SELECT true FROM gone",
        "SELECT true; DELETE FROM payment",
        "SELECT true FROM payment FOR UPDATE",
        "SELECT set_config('transaction_read_only', 'off', true) = 'off'",
        "SELECT nextval('outbox.position') > 0",
    ],
)
def test_a_query_that_writes_is_refused_by_the_server(
    database: str, shop: psycopg.Connection[Any], query: str
) -> None:
    answer = ask(make_asker(database, query))
    assert answer.state is UNKNOWN
    assert (answer.remark or "").startswith("query: ")
    assert shop.execute("SELECT count(*) FROM payment").fetchone() == (1,)


def test_a_slow_query_ends_with_the_deadline_at_the_server_too(
    database: str, shop: psycopg.Connection[Any]
) -> None:
    with Stopwatch() as watch:
        answer = ask(make_asker(database, "SELECT true FROM pg_sleep(30)"), 0.5)
    assert watch.seconds < 2
    assert answer.state is UNKNOWN
    assert "statement timeout" in (answer.remark or "") or "time is up" in (answer.remark or "")
    running = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid()"
    running += " AND query LIKE '%pg_sleep(30)' AND datname = current_database()"
    wait_until(lambda: shop.execute(running).fetchone() == (0,), "the server has given up")


def test_a_query_that_waits_for_a_lock_ends_with_the_deadline(
    database: str, shop: psycopg.Connection[Any]
) -> None:
    with shop.transaction():
        shop.execute("LOCK TABLE payment")
        with Stopwatch() as watch:
            answer = ask(make_asker(database, "SELECT true FROM payment"), 0.5)
        assert watch.seconds < 2
    assert answer.state is UNKNOWN


@pytest.fixture
def nobody(shop: psycopg.Connection[Any]) -> Iterator[str]:
    """A role without rights, of this test: roles belong to the whole cluster."""
    name = f"nobody_{uuid.uuid4().hex[:12]}"
    shop.execute(f"CREATE ROLE {name}".encode())
    yield name
    shop.execute(f"DROP ROLE {name}".encode())


def test_a_role_narrows_what_the_query_may_read(database: str, nobody: str) -> None:
    asker = make_asker(database, "SELECT state = 'paid' FROM payment", role=nobody)
    assert "permission denied" in (ask(asker).remark or "")
    assert ask(make_asker(database, "SELECT state = 'paid' FROM payment")).state is COMMIT
    assert ask(make_asker(database, "SELECT current_user = 'no'", role="no_such_role")).state is UNKNOWN


@pytest.mark.parametrize("local", ["true", "false"])
def test_a_query_that_gives_up_its_role_does_not_do_so_for_the_next_question(
    database: str, nobody: str, local: str
) -> None:
    query = (
        f"SELECT CASE current_user WHEN '{nobody}' THEN set_config('role', 'none', {local}) = 'none' "
        "ELSE false END"
    )
    asker = make_asker(database, query, role=nobody)
    answers = [asker.ask(a_view(), time.monotonic() + 10) for _ in range(3)]
    asker.close()
    assert answers == [Answer(COMMIT)] * 3


@pytest.mark.parametrize("ends", ["true", "1 / 0 = 1"])
def test_nothing_of_a_question_is_left_in_its_session(
    database: str, shop: psycopg.Connection[Any], ends: str
) -> None:
    shop.execute(
        "CREATE FUNCTION leave() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN "
        "PERFORM pg_advisory_lock(7), set_config('work_mem', '1MB', false), set_config('my.own', 'x', false); "
        "EXECUTE 'PREPARE left_behind AS SELECT 1'; RETURN true; END $$"
    )
    asker = make_asker(database, f"SELECT CASE WHEN leave() THEN {ends} END")
    asker.ask(a_view(), time.monotonic() + 10)
    (_, conn), *_ = asker._idle
    left = (
        "SELECT (SELECT count(*) FROM pg_prepared_statements), current_setting('work_mem') = '1MB', "
        "coalesce(current_setting('my.own', true), '')"
    )
    assert conn.execute(left.encode()).fetchone() == (0, False, "")
    conn.rollback()
    assert shop.execute(
        "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
        "WHERE l.locktype = 'advisory' AND l.objid = 7 AND d.datname = current_database()"
    ).fetchone() == (0,)
    asker.close()


def test_a_connection_that_was_cut_off_as_its_answer_came_is_not_used_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker = make_asker(database, "SELECT true")
    run = asker._run

    def answered_at_the_deadline(conn: psycopg.Connection[Any], view: Any, deadline: float) -> Any:
        rows = run(conn, view, deadline)
        assert select.select([conn.fileno()], [], [], 10)[0], "the watchdog cuts it off"
        return rows

    with monkeypatch.context() as schedule:
        schedule.setattr(asker, "_run", answered_at_the_deadline)
        assert asker.ask(a_view(), time.monotonic() + 0.3).state is COMMIT
    assert ask(asker) == Answer(COMMIT)


def test_another_database_is_named_by_a_variable(database: str, shop: psycopg.Connection[Any]) -> None:
    query = "SELECT state = 'paid' FROM payment WHERE id = %(biz_id)s"
    asker = make_asker(
        "host=127.0.0.1 port=1",
        query,
        {"OUTBOX_CALLBACK_DSN_SHOP": database},
        dsn_env="OUTBOX_CALLBACK_DSN_SHOP",
    )
    assert asker.missing(a_view()) is None
    assert ask(asker).state is COMMIT
    assert "set OUTBOX_CALLBACK_DSN_SHOP" in (
        make_asker(database, query, dsn_env="OUTBOX_CALLBACK_DSN_SHOP").missing(a_view()) or ""
    )


def test_an_unreachable_database_is_unknown_and_its_password_is_not_told() -> None:
    variables = {"OUTBOX_CALLBACK_DSN_SHOP": "postgresql://shop:top-secret@127.0.0.1:1/shop"}
    answer = ask(make_asker("", "SELECT true", variables, dsn_env="OUTBOX_CALLBACK_DSN_SHOP"))
    assert answer.state is UNKNOWN
    assert "cannot reach" in (answer.remark or "")
    assert "top-secret" not in (answer.remark or "")


@pytest.mark.feature("S-47")
def test_a_database_that_hangs_costs_no_more_than_the_deadline(
    private_stack: Stack, private_database: str
) -> None:
    asker = make_asker(private_database, "SELECT true")
    fresh = make_asker(private_database, "SELECT true")
    assert asker.ask(a_view(), time.monotonic() + 10).state is COMMIT
    private_stack.pause_postgres()
    for one in [asker, fresh] * 4:  # more than the connections that may be left behind
        with Stopwatch() as watch:
            answer = one.ask(a_view(), time.monotonic() + 0.3)
        assert watch.seconds < 1.3
        assert answer.state is UNKNOWN
        assert "no answer in time" in (answer.remark or "")
    private_stack.resume_postgres()
    assert ask(asker).state is COMMIT
