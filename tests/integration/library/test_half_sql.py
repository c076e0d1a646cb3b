"""Half messages in any language: one statement decides with a producer's rights, the table refuses contradictions."""

from __future__ import annotations

import re
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from outbox import Message, Outbox
from outbox.errors import DecidedOtherwiseError
from tests.integration.database.test_plain_sql import example
from tests.support.plain_inserts import Connection

PREPARE = """
    INSERT INTO outbox.message (topic, key, body, producer_group, checker, biz_id, check_after, state)
    VALUES ('payments', 'p-7', 'charged', 'orders', 'payment', 'p-7', '10 seconds', 'UNKNOWN')
    RETURNING id, message_id
"""
DECIDE = "UPDATE outbox.message SET state = '{}', remark = 'by hand' WHERE id = {} AND state = 'UNKNOWN'"
OUTBOX = Outbox(producer_group="orders")


@pytest.fixture
def producer(database: str) -> Iterator[Connection]:
    """A connection with the rights of a producer, and no more."""
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("SET ROLE outbox_producer")
        yield conn


def named(script: str, row: tuple[object, ...] | None) -> str:
    """An example of the page, about this message."""
    assert row is not None
    script = re.sub(r"\bid = \d+", f"id = {row[0]}", script)
    return re.sub(r"message_id = '[^']*'", f"message_id = '{row[1]}'", script)


def prepared(conn: Connection) -> int:
    row = conn.execute(PREPARE).fetchone()
    assert row is not None
    return int(row[0])


def decide(conn: Connection, id: int, state: str) -> int:
    return conn.execute(DECIDE.format(state, id).encode()).rowcount


@pytest.mark.feature("S-13", "S-14")
@pytest.mark.parametrize(("state", "other"), [("COMMITTED", "ROLLED_BACK"), ("ROLLED_BACK", "COMMITTED")])
def test_one_statement_decides_and_a_second_one_finds_nothing(
    producer: Connection, state: str, other: str
) -> None:
    id = prepared(producer)
    assert decide(producer, id, state) == 1
    assert decide(producer, id, other) == 0
    assert decide(producer, id, state) == 0
    events = producer.execute(
        "SELECT from_state, to_state, reason FROM outbox.event WHERE id = %s ORDER BY happened_at", [id]
    ).fetchall()
    assert events == [(None, "UNKNOWN", None), ("UNKNOWN", state, "by hand")]
    row = producer.execute("SELECT message_id FROM outbox.message").fetchone()
    assert row is not None
    verb = OUTBOX.rollback if state == "COMMITTED" else OUTBOX.commit
    producer.autocommit = False
    with pytest.raises(DecidedOtherwiseError, match="by hand"):
        verb(producer, row[0])


@pytest.mark.feature("S-07", "S-14")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ROLLED_BACK", "COMMITTED"),
        ("ROLLED_BACK", "UNKNOWN"),
        ("ROLLED_BACK", "EXHAUSTED"),
        ("ROLLED_BACK", "CANCELLED"),
        ("COMMITTED", "ROLLED_BACK"),
        ("COMMITTED", "UNKNOWN"),
        ("COMMITTED", "EXHAUSTED"),
        ("UNKNOWN", "CANCELLED"),
        ("UNKNOWN", "DEAD"),
        ("UNKNOWN", "PUBLISHED"),
        ("EXHAUSTED", "UNKNOWN"),
        ("EXHAUSTED", "CANCELLED"),
    ],
)
def test_table_refuses_contradictions_whoever_asks(database: str, before: str, after: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        id = prepared(conn)
        if before != "UNKNOWN":
            assert decide(conn, id, before) == 1
        with pytest.raises(
            psycopg.errors.CheckViolation, match=f"is {before} and cannot become {after}"
        ) as caught:
            conn.execute("UPDATE outbox.message SET state = %s WHERE id = %s", [after, id])
        assert caught.value.diag.constraint_name == "message_transition"
        assert conn.execute("SELECT state FROM outbox.message").fetchone() == (before,)


@pytest.mark.feature("S-13")
def test_statements_of_the_reference_page_decide_tell_and_cancel(producer: Connection) -> None:
    born, decide_it, tell, lock = (
        example(text) for text in ("'UNKNOWN')", "'charged'\nWHERE", "actor", "NO KEY")
    )
    half = producer.execute(born.encode()).fetchone()
    assert (
        producer.execute(named(lock, half).replace("BEGIN;", "").replace("COMMIT;", "").encode()).rowcount
        == 1
    )
    assert producer.execute(named(decide_it, half).encode()).rowcount == 1
    assert producer.execute(named(decide_it, half).encode()).rowcount == 0
    told = producer.execute(named(tell, half).encode()).fetchall()
    assert [(row[0], row[1], row[4]) for row in told] == [
        ("COMMITTED", "UNKNOWN", None),
        ("COMMITTED", "COMMITTED", "charged"),
    ]
    delayed = producer.execute(
        example("interval '30 minutes'").replace(";", " RETURNING id, message_id;").encode()
    )
    assert producer.execute(named(example("CANCELLED"), delayed.fetchone()).encode()).rowcount == 1


def test_committed_message_that_does_not_wait_cannot_be_cancelled_by_hand(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        id = prepared(conn)
        decide(conn, id, "COMMITTED")
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            conn.execute("UPDATE outbox.message SET state = 'CANCELLED' WHERE id = %s", [id])
        assert caught.value.diag.constraint_name == "message_is_waiting"


def test_verbs_need_no_more_than_a_producers_rights(producer: Connection) -> None:
    with producer.transaction():
        half = OUTBOX.prepare(producer, Message("payments", key="p", biz_id="p"), idempotency_key="once")
        OUTBOX.join(producer, half)
        OUTBOX.commit(producer, half, ordered=True)
        OUTBOX.commit(producer, half.message_id)
        OUTBOX.rollback(producer, OUTBOX.prepare(producer, Message("payments")))
        with pytest.raises(DecidedOtherwiseError):
            OUTBOX.rollback(producer, half)
    assert producer.execute("SELECT state FROM outbox.message ORDER BY id").fetchall() == [
        ("COMMITTED",),
        ("ROLLED_BACK",),
    ]


def test_producer_cancels_what_waits_and_learns_what_does_not(producer: Connection) -> None:
    with producer.transaction():
        row = producer.execute("SELECT clock_timestamp() + interval '1 day'").fetchone()
        assert row is not None
        receipt = OUTBOX.send(producer, Message("payments", deliver_at=row[0]))
        assert OUTBOX.cancel(producer, receipt).state == "CANCELLED"
        assert OUTBOX.cancel(producer, receipt).repeated


@pytest.mark.feature("S-77")
def test_producer_may_name_its_group_and_no_more(producer: Connection) -> None:
    with producer.transaction():
        assert OUTBOX.register_group(producer, "orders", message_type="TRANSACTION").max_checks == 15
        assert OUTBOX.register_group(producer, "orders").message_type == "TRANSACTION"
    producer.autocommit = False
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        OUTBOX.register_group(producer, "orders", max_checks=1000)
    producer.rollback()
    producer.autocommit = True
    for statement in (
        "UPDATE outbox.producer_group SET policy = 'EXHAUSTED'",
        """INSERT INTO outbox.producer_group (name, callback) VALUES ('x', '{"kind": "http"}')""",
        "DELETE FROM outbox.producer_group",
        "INSERT INTO outbox.event (id, message_id, kind, actor) VALUES (1, gen_random_uuid(), 'check', 'me')",
        "DELETE FROM outbox.waiting",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            producer.execute(sql.SQL(statement))


@pytest.mark.feature("S-77")
def test_group_of_normal_messages_is_refused_half_messages_in_any_language(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as conn:
        conn.execute("INSERT INTO outbox.producer_group (name, message_type) VALUES ('orders', 'NORMAL')")
        with pytest.raises(
            psycopg.errors.CheckViolation, match="is registered for normal messages"
        ) as caught:
            conn.execute(PREPARE)
        assert caught.value.diag.constraint_name == "message_type_is_the_groups"
