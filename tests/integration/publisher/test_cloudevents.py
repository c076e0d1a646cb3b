"""CloudEvents through the relay and a real broker, read by the official SDK for Python."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.kafka import KafkaMessage, from_binary, to_binary
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from psycopg.types.json import Jsonb

from outbox import Message, Outbox
from outbox.cloudevents import event_headers
from tests.support.kafka_records import Record, read_topic
from tests.support.relay_in_process import publish

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "cloudevents.md"
NOON = datetime(2026, 11, 25, 12, tzinfo=UTC)


def event_of(record: Record) -> BaseCloudEvent:
    """What the SDK reads."""
    headers = {name: value for name, value in record.headers if value is not None}
    assert len(headers) == len(record.headers)
    return from_binary(KafkaMessage(headers, record.key, record.value or b""), JSONFormat())


@pytest.mark.feature("S-70")
def test_the_sdk_reads_events_of_the_library_and_of_plain_sql(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    full = event_headers(
        type="com.example.order.paid",
        source="/shop/orders",
        subject="订单-1",
        time=NOON,
        dataschema="https://example.com/order.json",
        datacontenttype="application/json",
        traceid="t-1",
    )
    sql = {"ce_specversion": "1.0", "ce_type": "order.sent", "ce_source": "/shop"}
    with psycopg.connect(database) as conn:
        sent = [
            Outbox("shop").send(conn, Message(topic, key="k", body='{"n": 1}', headers=full)).message_id,
            *(row[0] for row in conn.execute(
                "SELECT outbox.send(%s, 'two', key => 'k', headers => %s)", [topic, Jsonb(sql)]
            )),
            Outbox().send(conn, Message(topic, key="k", body="three", headers=event_headers(
                type="order.billed", source="/shop"))).message_id,
            Outbox().send(conn, Message(topic, key="k", body="no event")).message_id,
        ]  # fmt: skip
        born = [row[0] for row in conn.execute("SELECT born_at FROM outbox.message ORDER BY id")]
    publish(database, bootstrap_servers, 4)
    records = read_topic(bootstrap_servers, topic)
    assert not any(name.startswith("ce_") for name, _ in records[3].headers)
    first, second, third = (event_of(record) for record in records[:3])

    assert [event.get_id() for event in (first, second, third)] == [str(id_) for id_ in sent[:3]]
    assert [record.message_id for record in records] == [str(id_) for id_ in sent]
    assert first.get_attributes() == {
        "specversion": "1.0",
        "id": str(sent[0]),
        "type": "com.example.order.paid",
        "source": "/shop/orders",
        "subject": "订单-1",
        "time": NOON,
        "dataschema": "https://example.com/order.json",
        "datacontenttype": "application/json",
        "traceid": "t-1",
        "partitionkey": "k",
    }
    assert first.get_data() == {"n": 1}
    assert (second.get_type(), second.get_source(), second.get_data()) == ("order.sent", "/shop", "two")
    for event, record, at in ((second, records[1], born[1]), (third, records[2], born[2])):
        time = event.get_time()
        assert time is not None
        assert record.header("outbox-born-at") == str(round(time.timestamp() * 1000))
        assert abs(time - at) < timedelta(milliseconds=1)


def test_an_event_of_the_sdk_that_is_passed_on_keeps_its_id(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    given = CloudEvent({"type": "t", "source": "/elsewhere", "id": "e-7", "partitionkey": "k"}, b"data")
    made = to_binary(given, JSONFormat())
    with psycopg.connect(database) as conn:
        Outbox().send(conn, Message(topic, key=made.key, body=made.value, headers=made.headers))
    publish(database, bootstrap_servers, 1)
    (record,) = read_topic(bootstrap_servers, topic)
    read: Any = event_of(record)
    assert read.get_attributes() == given.get_attributes()


def test_the_examples_of_the_page_run(
    database: str, bootstrap_servers: str, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "sql", "python"]
    send, sql, read = (
        code.replace('"orders"', f'"{topic}"').replace("'orders'", f"'{topic}'") for _, code in blocks
    )
    exec(compile(send, str(PAGE), "exec"), {"dsn": database})
    with psycopg.connect(database) as conn:
        conn.execute(sql.encode())
    publish(database, bootstrap_servers, 2)
    records = read_topic(bootstrap_servers, topic)
    for record in records:
        given: dict[str, Any] = {"headers": record.headers, "key": record.key, "value": record.value}
        message = SimpleNamespace(**{name: lambda value=value: value for name, value in given.items()})
        exec(compile(read, str(PAGE), "exec"), {"record": message})
    shown = capsys.readouterr().out.splitlines()
    assert shown == [f"{record.message_id} com.example.order.paid {{'amount': 20}}" for record in records]
    assert len(shown) == 2
