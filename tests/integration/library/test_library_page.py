"""The examples of docs/reference/library.md run as they stand."""

from __future__ import annotations

import re
import zlib
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox import Message, Outbox
from outbox.errors import InvalidConnectionError

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "reference" / "library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_send_what_they_say(database: str) -> None:
    sending, _, selecting, *_ = EXAMPLES
    with psycopg.connect(database) as conn:
        conn.execute("CREATE TABLE orders AS SELECT 'o-1'::text AS id, 'new'::text AS state")
        conn.commit()
        names: dict[str, Any] = {"dsn": database}
        exec(sending, names)
        Outbox().register_topic(conn, "orders", 4)
        exec(selecting, {"conn": conn, "Message": Message, "Outbox": Outbox, "REGIONS": ["us", "eu"]})
        found = conn.execute(
            "SELECT key, body, tags, queue, selector FROM outbox.message ORDER BY id"
        ).fetchall()
        state = conn.execute("SELECT state FROM orders").fetchone()
    assert found == [(b"o-1", b"paid", ["paid"], None, None), (b"o-1", b"", [], 1, "by_region")]
    assert state == ("paid",)
    assert names["receipt"].topic == "orders"


def test_the_example_of_a_selector_of_one_call_chooses_the_queue(database: str) -> None:
    with psycopg.connect(database) as conn:
        outbox = Outbox()
        outbox.register_topic(conn, "orders", 4)
        exec(EXAMPLES[3], {"conn": conn, "outbox": outbox, "Message": Message})
        assert conn.execute("SELECT queue FROM outbox.message").fetchall() == [(17 % 4,)]


def test_the_example_of_a_codec_encodes_what_is_written(database: str) -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES[4], names)
    outbox = Outbox(codecs={"customers": names["Compressed"]()})
    with psycopg.connect(database) as conn:
        outbox.send(conn, Message("customers", key="c-1", body=b"a" * 1_000))
        [(body, headers)] = conn.execute("SELECT body, headers FROM outbox.message").fetchall()
    assert zlib.decompress(body) == b"a" * 1_000
    assert "zlib" in str(headers)


def test_example_of_a_half_message_commits_it_with_the_last_write(database: str) -> None:
    charged: list[Any] = []
    with psycopg.connect(database) as conn:
        conn.execute("CREATE TABLE payments (id text, state text)")
        conn.commit()

        def charge_card() -> None:
            charged.append(conn.execute("SELECT state FROM outbox.message").fetchone())
            conn.commit()

        outbox = Outbox(producer_group="payments")
        exec(EXAMPLES[1], {"conn": conn, "outbox": outbox, "Message": Message, "charge_card": charge_card})
        found = conn.execute("SELECT state, checker, biz_id FROM outbox.message").fetchall()
        paid = conn.execute("SELECT state FROM payments").fetchall()
    assert charged == [("UNKNOWN",)]
    assert found == [("COMMITTED", "payment", "p-7")]
    assert paid == [("paid",)]


def test_the_example_of_sqlalchemy_commits_rows_and_messages_together(database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("CREATE TABLE orders AS SELECT 'o-2'::text AS id, 'new'::text AS state")
        conn.commit()
        names: dict[str, Any] = {"url": database.replace("postgresql://", "postgresql+psycopg://", 1)}
        exec(EXAMPLES[5], names)
        names["engine"].dispose()
        found = conn.execute("SELECT key, body FROM outbox.message ORDER BY id").fetchall()
        assert found == [(b"o-2", b"paid"), (b"o-2", b"sent")]
        assert conn.execute("SELECT state FROM orders").fetchone() == ("paid",)


def test_what_sqlalchemy_wraps_is_refused_with_the_outbox_for_it(database: str) -> None:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://", 1))
    message = Message("orders", key="o-2")
    with Session(engine) as session, session.begin():
        told = r"use outbox\.adapters\.sqlalchemy\.SQLAlchemyOutbox for it"
        for given in (session, session.connection()):
            with pytest.raises(InvalidConnectionError, match=told):
                Outbox().send(given, message)
    engine.dispose()


def test_a_role_without_rights_is_told_the_grant(database: str) -> None:
    with psycopg.connect(database) as conn:
        conn.execute("SET LOCAL ROLE pg_signal_backend")
        with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
            Outbox().send(conn, Message("orders"))
    assert "GRANT outbox_producer TO" in str(refused.value.__notes__)
