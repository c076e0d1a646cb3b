"""Errors of a database in remarks: a listener's failed statement leaves its class, and no value of a row."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from outbox.checking.describing import error_text
from tests.support.checked_half_messages import CheckStage, Script
from tests.support.plain_inserts import Connection

VALUE = "alice@example.com"
UNIQUE = "UniqueViolation (SQLSTATE 23505, constraint payer_email_key)"


class Own(Exception):
    """An application's exception."""

    orig: BaseException | None = None


@pytest.fixture(autouse=True)
def payer(stage: CheckStage) -> None:
    stage.conn.execute("CREATE TABLE payer (email text UNIQUE)")
    stage.conn.execute("INSERT INTO payer VALUES (%s)", [VALUE])


def twice(conn: Connection) -> None:
    conn.execute("INSERT INTO payer VALUES (%s)", [VALUE])


def raised(work: Callable[[], object]) -> BaseException:
    with pytest.raises(BaseException) as caught:
        work()
    return caught.value


def test_a_listener_whose_statement_fails_leaves_no_value_in_the_audit(stage: CheckStage) -> None:
    half = stage.half()
    stage.check(Script(lambda _: twice(stage.conn)))
    reasons = [event.reason for event in stage.events(half) if event.kind == "check"]
    assert reasons == [f"checkLocalTransactionState exception: {UNIQUE}"]


def test_wrapped_errors_count_as_the_servers(stage: CheckStage) -> None:
    server = raised(lambda: twice(stage.conn))
    assert VALUE in str(server)
    assert error_text(server) == UNIQUE
    by_sqlalchemy = Own(f"(psycopg.errors.UniqueViolation) {server} [parameters: ('{VALUE}',)]")
    by_sqlalchemy.orig = server
    assert error_text(by_sqlalchemy) == UNIQUE.replace("UniqueViolation", "Own")
    by_django = Own(str(server))
    by_django.__cause__ = server
    assert error_text(by_django) == UNIQUE.replace("UniqueViolation", "Own")


def test_an_applications_own_text_and_the_servers_about_a_statement_are_kept(stage: CheckStage) -> None:
    own = Own("no such payment")
    own.__cause__ = raised(lambda: twice(stage.conn))
    assert error_text(own) == "Own: no such payment"
    missing = raised(lambda: stage.conn.execute("SELECT FROM nowhere"))
    assert error_text(missing) == 'UndefinedTable (SQLSTATE 42P01): relation "nowhere" does not exist'
    with psycopg.connect(stage.dsn) as other:
        other.execute("SET statement_timeout = 1")
        late = raised(lambda: other.execute("SELECT pg_sleep(10)"))
    assert error_text(late) == "QueryCanceled (SQLSTATE 57014): canceling statement due to statement timeout"
    assert error_text(KeyError()) == "KeyError"
