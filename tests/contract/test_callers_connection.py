"""The caller's connection: whatever it is set to does not matter, and what it complains of passes unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from outbox import AsyncOutbox, Message, Outbox
from outbox.errors import InvalidConnectionError, NoTransactionError
from tests.contract.conftest import MakeSession
from tests.support.contract_sessions import Session, count


def test_one_statement_is_prepared_whatever_is_null_or_empty(session: Session) -> None:
    for message in (
        Message("orders"),
        Message("orders:a", key="k", body=None, headers={"a": "b"}),
        Message("orders", order_key=b"o", deliver_at=datetime(2030, 1, 1, tzinfo=UTC), biz_id="7"),
        Message("orders", queue=2, index_keys=["k"]),
    ):
        session.send(message)
    prepared = session.execute("SELECT statement FROM pg_prepared_statements WHERE statement ~ 'INSERT'")
    assert len(prepared) == 1


def test_connection_that_forbids_preparing_is_obeyed(make_session: MakeSession) -> None:
    session = make_session(connect={"prepare_threshold": None})
    session.send(Message("orders"))
    session.send_many([Message("orders")])
    assert session.execute("SELECT statement FROM pg_prepared_statements") == []


class _Shouting(psycopg.adapt.Dumper):
    """An application's own idea of text."""

    def dump(self, obj: str) -> bytes:
        return obj.upper().encode()


class _NoUuid(psycopg.adapt.Loader):
    """An application that wants uuids as something else."""

    def load(self, data: Any) -> str:
        return "not a uuid"


def test_row_factory_cursor_factory_and_adapters_of_the_caller_do_not_matter(
    make_session: MakeSession,
) -> None:
    session = make_session(connect={"row_factory": dict_row})
    is_sync = isinstance(session.conn, psycopg.Connection)
    session.conn.cursor_factory = psycopg.ClientCursor if is_sync else psycopg.AsyncClientCursor
    session.conn.adapters.register_dumper(str, _Shouting)
    session.conn.adapters.register_loader("uuid", _NoUuid)
    message = Message("orders", body="quiet", headers={"a": "b"})
    receipts = [session.send(message), *session.send_many([message])]
    assert all(isinstance(receipt.message_id, UUID) for receipt in receipts)
    found = session.execute(
        "SELECT topic FROM outbox.message WHERE id = ANY (%s)", [[r.id for r in receipts]]
    )
    assert found == [{"topic": "orders"}] * 2


def test_client_encoding_of_the_caller_does_not_matter(session: Session) -> None:
    session.execute("SET client_encoding = 'LATIN1'")
    message = Message("orders", headers={"é": "ü"}, tags=["straße"], body="é")
    ids = [session.send(message).id, session.send_many([message])[0].id]
    session.execute("SET client_encoding = 'UTF8'")
    found = session.execute("SELECT headers, tags, body FROM outbox.message WHERE id = ANY (%s)", [ids])
    assert found == [({"é": "ü"}, ["straße"], "é".encode())] * 2


def test_send_works_in_a_pipeline(session: Session) -> None:
    receipts = session.in_pipeline(lambda: [session.send(Message("orders")) for _ in range(3)])
    session.commit()
    assert session.execute("SELECT id FROM outbox.message ORDER BY id") == [
        (receipt.id,) for receipt in receipts
    ]


@pytest.mark.parametrize("call", ["send", "send_many", "register_topic"])
def test_autocommit_outside_a_transaction_is_refused_with_the_remedy(
    make_session: MakeSession, observer: Session, call: str
) -> None:
    session = make_session(connect={"autocommit": True})
    calls: dict[str, Callable[[], object]] = {
        "send": lambda: session.send(Message("orders")),
        "send_many": lambda: session.send_many([Message("orders")]),
        "register_topic": lambda: session.register_topic("orders", 4),
    }
    with pytest.raises(NoTransactionError, match=r"outside a transaction.*with conn\.transaction\(\)"):
        calls[call]()
    assert count(observer) == 0


def test_autocommit_inside_a_transaction_begun_by_hand_is_fine(
    make_session: MakeSession, observer: Session
) -> None:
    session = make_session(connect={"autocommit": True})
    session.execute("BEGIN")
    session.send(Message("orders"))
    session.execute("COMMIT")
    assert count(observer) == 1


def test_another_kind_of_connection_is_refused_with_the_outbox_for_it(session: Session) -> None:
    async def send(conn: Any) -> None:
        if isinstance(session.conn, psycopg.Connection):
            await AsyncOutbox().send(conn, Message("orders"))
        else:
            Outbox().send(conn, Message("orders"))

    name = "Outbox" if isinstance(session.conn, psycopg.Connection) else "AsyncOutbox"
    with pytest.raises(
        InvalidConnectionError, match=rf"conn: is psycopg\..*; use {name} for it; allowed here"
    ):
        asyncio.run(send(session.conn))
    with pytest.raises(InvalidConnectionError, match=r"conn: is builtins\.str; allowed here: psycopg\."):
        asyncio.run(send("host=localhost"))


def test_error_of_the_driver_passes_unchanged(session: Session) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction) as caught:
        session.send(Message("orders"))
    assert not hasattr(caught.value, "__notes__")


def test_closed_connection_is_the_drivers_error(session: Session) -> None:
    session.execute("SELECT 1")
    conn = session.conn
    conn.pgconn.finish()
    with pytest.raises(psycopg.OperationalError):
        session.send(Message("orders"))


@pytest.mark.parametrize(
    "damage",
    [
        "DROP SCHEMA outbox CASCADE",
        "DROP TABLE outbox.topic CASCADE",
        "ALTER TABLE outbox.message DROP COLUMN biz_id CASCADE",
    ],
)
def test_missing_or_older_schema_names_the_command_that_repairs_it(session: Session, damage: str) -> None:
    session.execute(damage)
    with pytest.raises(psycopg.errors.ProgrammingError) as caught:
        session.send(Message("orders"))
    assert caught.value.__notes__ == [
        "The outbox schema is missing or older than this library needs; run: outbox db upgrade"
    ]


def test_role_of_a_producer_may_do_all_of_it_and_read_no_body(session: Session) -> None:
    session.register_topic("orders", 4)
    session.execute("SET ROLE outbox_producer")
    session.send(Message("orders", key="k"))
    session.send(Message("orders", key="k", message_id=uuid4()), ordered=True)
    session.send(Message("orders", key="k"), ordered=True, idempotency_key="once")
    session.send_many(
        [Message("orders", key="k"), Message("orders", message_id=uuid4(), key="k")], ordered=True
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("SELECT body FROM outbox.message")
