"""From Debezium's outbox event router and to it: docs/how-to/debezium.md, with its SQL as it stands."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Json, Jsonb

from outbox_relay.operations import debezium
from tests.support.outbox_command import outbox

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "debezium.md"
REPLACE, PUBLISH = (
    textwrap.dedent(block)
    for block in re.findall(
        r"^ *```sql\n(.*?)^ *```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
)
TABLE = """
    CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
                              aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload {type})
"""
INSERT = "INSERT INTO outboxevent (id, aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s, %s)"
SENT = "SELECT message_id, topic, key, body, headers FROM outbox.message ORDER BY id"


@pytest.fixture(params=["jsonb"])
def writer(database: str, request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A session of a service whose table of Debezium became a view; the parameter is the type of the payload."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(sql.SQL(TABLE).format(type=sql.SQL(request.param)))
        connection.execute(REPLACE.encode())
        connection.execute("SET ROLE outbox_producer")
        yield connection


def sent(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    connection.execute("RESET ROLE")
    return connection.execute(SENT).fetchall()


@pytest.mark.parametrize(
    ("writer", "payload", "body"),
    [
        ("jsonb", Jsonb({"s": "a\\b 日本"}), '{"s": "a\\\\b 日本"}'.encode()),
        ("json", Json({"s": "\\x41"}), b'{"s": "\\\\x41"}'),
        ("text", "\\x41 '\"\n", b"\\x41 '\"\n"),
        ("varchar", "", b""),
        ("bytea", b"\x00\xff\\x", b"\x00\xff\\x"),
        ("jsonb", None, None),
    ],
    indirect=["writer"],
)
def test_a_row_of_the_event_routers_table_is_sent_as_it_would_publish_it(
    writer: psycopg.Connection[Any], payload: Any, body: bytes | None
) -> None:
    event = uuid4()
    with writer.transaction():
        writer.execute(INSERT, [event, "order", "订单-1", "OrderPaid", payload])
        writer.execute("DELETE FROM outboxevent WHERE id = %s", [event])
    assert writer.execute("SELECT count(*) FROM outboxevent").fetchone() == (0,)
    headers = {"id": str(event), "eventType": "OrderPaid"}
    assert sent(writer) == [(event, "outbox.event.order", "订单-1".encode(), body, headers)]


def test_a_row_without_an_id_gets_the_message_id(writer: psycopg.Connection[Any]) -> None:
    row = writer.execute(INSERT + " RETURNING id", [None, "order", "1", "t", Jsonb(1)]).fetchone()
    ((message_id, *_, headers),) = sent(writer)
    assert row == (message_id,)
    assert headers == {"eventType": "t"}


def test_a_rolled_back_transaction_sends_nothing(writer: psycopg.Connection[Any]) -> None:
    with writer.transaction(force_rollback=True):
        writer.execute(INSERT, [uuid4(), "order", "1", "t", Jsonb(1)])
    assert sent(writer) == []


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"aggregatetype": None}, "aggregatetype is null"),
        ({"aggregatetype": "or der"}, "not a legal Kafka topic name"),
        ({"id": UUID("0af76519-16cd-83dd-8448-eb211c80319c")}, "of version 8"),
    ],
)
def test_what_no_message_can_be_is_refused_by_name(
    writer: psycopg.Connection[Any], row: dict[str, Any], rule: str
) -> None:
    values = {
        "id": uuid4(),
        "aggregatetype": "o",
        "aggregateid": "1",
        "type": "t",
        "payload": Jsonb(1),
        **row,
    }
    with pytest.raises(psycopg.errors.CheckViolation, match=rule):
        writer.execute(INSERT, list(values.values()))
    assert sent(writer) == []


@pytest.mark.parametrize("placement", ["type:envelope", "nosuch:header", "type", "type:header:a:b"])
def test_a_placement_that_is_not_supported_is_refused_by_name(database: str, placement: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(TABLE.format(type="text").encode())
        connection.execute(REPLACE.replace("type:header:eventType", placement).encode())
        with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"the placement '{placement}'"):
            connection.execute(INSERT, [uuid4(), "o", "1", "t", "x"])


def test_the_connector_reads_columns_that_there_are_and_nothing_that_waits(database: str) -> None:
    printed = outbox("db", "debezium", "--dsn", "postgresql://u:secret@host:5433/shop").json
    assert "secret" not in json.dumps(printed)
    config = printed["config"]
    assert (config["database.hostname"], config["database.port"], config["database.dbname"]) == (
        "host",
        "5433",
        "shop",
    )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(PUBLISH.encode())
        rows = connection.execute(
            "SELECT schemaname || '.' || tablename, attnames, rowfilter FROM pg_publication_tables WHERE pubname = %s",
            [config["publication.name"]],
        ).fetchall()
        ((table, columns, condition),) = rows
        assert table == config["table.include.list"]
        assert condition == "((state = 'COMMITTED'::text) AND (deliver_at IS NULL))"
        assert {f"{table}.{column}" for column in columns} == set(config["column.include.list"].split(","))
    fields = {name.removeprefix("transforms.outbox."): value for name, value in config.items()}
    named = [value for name, value in fields.items() if name.startswith(("table.field.", "route.by."))]
    named += [part.split(":")[0] for part in fields["table.fields.additional.placement"].split(",")]
    assert set(named) | {"id"} == set(columns) == set(debezium.COLUMNS)
