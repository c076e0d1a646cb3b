"""docs/how-to/query-now.md: each statement runs as a reader, and returns what is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from tests.support.logins import Logins

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "query-now.md"
LAST, LIFE, HOUR, HALF, WAITING, FAILING = re.findall(
    r"^```sql\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)
PARKED = """
    INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES ('points', '{}', false);
    INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('orders', 'c/orders');
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, body, header_names,
        header_values, published_at, state, attempts, fingerprint)
    SELECT g.id, gen_random_uuid(), current_date, t.id, 0, 1, 'd', 'secret', '{}', '{}', now(), 'dead', 16, 'KeyError'
    FROM outbox.consumer_group g, outbox.inbox_topic t
"""


@pytest.fixture
def reader(database: str, logins: Logins) -> psycopg.Connection[Any]:
    """A login that may read only, in a database with one message of each kind; the first has the id 1."""
    with psycopg.connect(database, autocommit=True) as conn:
        outbox = Outbox(producer_group="orders")
        with conn.transaction():
            outbox.send(conn, Message("orders", key="o-1", body="paid", index_keys=["customer-7"]))
        conn.execute(
            "INSERT INTO outbox.message (topic, deliver_at) VALUES ('reminders', now() + interval '1 day')"
        )
        with conn.transaction():
            outbox.prepare(conn, Message("payments", key="p-7", biz_id="p-7"))
        conn.execute(PARKED.encode())
    return logins.connect("outbox_reader")


def test_each_statement_of_the_page_runs_as_a_reader_and_finds_what_is_there(
    reader: psycopg.Connection[Any],
) -> None:
    with reader:
        rows = {
            name: reader.execute(statement.encode()).fetchall()
            for name, statement in [
                ("last", LAST),
                ("hour", HOUR),
                ("half", HALF),
                ("waiting", WAITING),
                ("failing", FAILING),
            ]
        }
        [(id, status, topic, *_)] = rows["last"]
        assert (status, topic) == ("COMMITTED", "orders")
        half = reader.execute("SELECT id FROM outbox.message_status WHERE state = 'UNKNOWN'").fetchone()
        assert half
        life = reader.execute(LIFE.replace("id = 1", f"id = {half[0]}").encode()).fetchall()
        assert life[0][1:4] == ("transition", None, "UNKNOWN")
        assert reader.execute(LIFE.replace("id = 1", f"id = {id}").encode()).fetchall() == []
    assert sorted(row[:3] for row in rows["hour"]) == [
        ("orders", 1, 0),
        ("payments", 1, 0),
        ("reminders", 1, 0),
    ]
    assert [row[:3] for row in rows["half"]] == [("orders", "UNKNOWN", 1)]
    assert [row[:3] for row in rows["waiting"]] == [("reminders", "delayed", 1)]
    assert rows["failing"] == [("points", "orders", "dead", "KeyError", 1, 16, None)]
