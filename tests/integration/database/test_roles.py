"""The roles: each can do its job, and nothing beyond it."""

from __future__ import annotations

import psycopg
import pytest

from outbox import Message, Outbox
from tests.support.logins import Logins
from tests.support.outbox_command import succeed
from tests.support.relay_in_process import publish


@pytest.mark.parametrize("idempotency_key", [None, "once"])
def test_a_producer_may_send(logins: Logins, topic: str, idempotency_key: str | None) -> None:
    outbox = Outbox(producer_group="orders")
    with psycopg.connect(logins.make("outbox_producer")) as conn:
        receipt = outbox.send(conn, Message(topic, key="k", body=b"x"), idempotency_key=idempotency_key)
    assert receipt.id > 0


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT body FROM outbox.message",
        "DELETE FROM outbox.message",
        "UPDATE outbox.message SET body = 'y'",
        "INSERT INTO outbox.message (topic, position) VALUES ('t', 1)",
        "INSERT INTO outbox.message (topic, xid) VALUES ('t', '1')",
        "UPDATE outbox.lane SET owner = 'me'",
        "INSERT INTO outbox.publication (epoch) VALUES (1)",
        "SELECT outbox.add_partition(1000)",
        "CREATE TABLE outbox.mine ()",
    ],
)
def test_a_producer_may_not(logins: Logins, statement: str) -> None:
    with (
        psycopg.connect(logins.make("outbox_producer"), autocommit=True) as conn,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        conn.execute(statement.encode())


@pytest.mark.parametrize("guard", ["admit_message", "make_transition"])
@pytest.mark.parametrize("role", ["outbox_producer", "outbox_consumer"])
def test_the_guards_rights_are_nobody_elses(logins: Logins, role: str, guard: str) -> None:
    """They act as the owner: on a table of one's own they would write audits and end waits of others."""
    with psycopg.connect(logins.make(role), autocommit=True) as conn:
        conn.execute("CREATE TEMP TABLE mine (id bigint, message_id uuid, state text)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(
                f"CREATE TRIGGER t BEFORE UPDATE ON mine FOR EACH ROW EXECUTE FUNCTION outbox.{guard}()".encode()
            )


def test_a_dead_message_that_was_delayed_waits_again_when_it_is_retried(database: str, topic: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute(
            "INSERT INTO outbox.message (topic, deliver_at) VALUES (%s, clock_timestamp() + interval '1 day')",
            [topic],
        )
        for state, waiting in (("DEAD", 0), ("COMMITTED", 1)):
            conn.execute("UPDATE outbox.message SET state = %s", [state])
            assert conn.execute("SELECT count(*) FROM outbox.waiting").fetchone() == (waiting,)


def test_a_reader_sees_status_and_no_body(logins: Logins) -> None:
    with psycopg.connect(logins.make("outbox_reader"), autocommit=True) as conn:
        conn.execute("SELECT status, partition FROM outbox.message_status LIMIT 1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT body FROM outbox.message")


HIDDEN = """
    SELECT c.relname || '.' || a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
        AND a.attnum > 0 AND NOT a.attisdropped AND NOT has_column_privilege(%s, c.oid, a.attnum, 'SELECT')
"""
KEYS = {
    f"subject_key.{name}"
    for name in [
        "id",
        "subject",
        "wrapped",
        "master_id",
        "created_at",
        "retired_at",
        "destroyed_at",
        "destroyed_by",
    ]
}
TURNS = {f"turn.{name}" for name in ("what", "pid", "login", "began")}
BODIES = {f"inbox_parked.{name}" for name in ("body", "header_names", "header_values")}
NOT_FOR_READERS = {
    "origin.one",
    "origin.xid",
    *(f"message.{name}" for name in ("body", "headers")),
    *(f"idempotency.{name}" for name in ("producer_group", "key", "digest", "id", "message_id", "born_at")),
}


@pytest.mark.parametrize(
    ("role", "hidden"),
    [
        *((role, KEYS | BODIES | TURNS) for role in ("outbox_relay", "outbox_checker", "outbox_etl")),
        ("outbox_reader", KEYS | BODIES | TURNS | NOT_FOR_READERS),
        ("outbox_operator", BODIES | TURNS | NOT_FOR_READERS),
    ],
)
@pytest.mark.parametrize("again", [False, True])
def test_what_a_service_may_not_read_is_in_this_list(
    database: str, role: str, hidden: set[str], again: bool
) -> None:
    """A new table or column that a revision grants to nobody shows here, before it stops a command."""
    with psycopg.connect(database, autocommit=True) as conn:
        if again:
            conn.execute(succeed("db", "sql", "--roles").out.encode())
        assert {name for (name,) in conn.execute(HIDDEN, [role])} == hidden


def test_the_relays_role_is_enough_to_publish(
    logins: Logins, database: str, bootstrap_servers: str, topic: str
) -> None:
    with psycopg.connect(database) as conn:
        Outbox().send_many(conn, [Message(topic, key=str(number), body=b"x") for number in range(50)])
    publish(logins.make("outbox_relay"), bootstrap_servers, 50)
    with psycopg.connect(database) as conn:
        row = conn.execute("SELECT sum(pg_catalog.cardinality(positions)) FROM outbox.publication").fetchone()
    assert row == (50,)
