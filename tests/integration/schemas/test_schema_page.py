"""The examples of the page about schemas run as they stand, from the registered schema to the listener."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.type.money_pb2 import Money

from outbox.inbox import PushConsumer
from tests.support.inbox_stage import InboxStage
from tests.support.order_schemas import ORDER, register
from tests.support.relay_session import relay_session, turn_until
from tests.support.schema_registry import RegistryServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.xdist_group("schema registry"), pytest.mark.feature("H-27")]
PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "schema-registry.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)


def test_the_page_about_schemas(inbox: InboxStage, topic: str, registry_server: RegistryServer) -> None:
    # The page's topic is everyone's: this test has one of its own.
    text = PAGE.read_text(encoding="utf-8").replace('"orders"', f'"{topic}"')
    send, in_development, consume, *others = BLOCK.findall(text)
    (schema,) = re.findall(r'ORDER = """(.*?)"""', send, re.S)
    inbox.conn.execute("CREATE TABLE orders (id text, paid bool); CREATE TABLE paid (id text, amount int)")
    inbox.conn.execute("INSERT INTO orders VALUES ('o-1', false)")
    register(registry_server.url, f"{topic}-value", schema)
    with psycopg.connect(inbox.dsn) as conn:
        names: dict[str, Any] = {
            "conn": conn,
            "dsn": inbox.dsn,
            "kafka": {"bootstrap.servers": inbox.bootstrap_servers},
            "registry_url": registry_server.url,
            "Price": Money,
            "password": "Pa55",
            "ca": None,
        }
        for block in (send, in_development, consume, *others):
            exec(compile(block, str(PAGE), "exec"), names)
        conn.commit()
    try:
        with relay_session(inbox.dsn, inbox.bootstrap_servers) as session:
            turn_until(session, lambda: in_kafka(inbox, topic) == 2, "both messages are in Kafka")
        consumer = names["consumer"]
        assert isinstance(consumer, PushConsumer)
        with consumer:
            wait_until(lambda: inbox.count("paid") == 2, "both messages are applied")
    finally:
        names["registry"].close()
        names["secured"].close()
    assert inbox.conn.execute("SELECT DISTINCT id, amount FROM paid").fetchall() == [tuple(ORDER.values())]


def in_kafka(inbox: InboxStage, topic: str) -> int:
    """How many records the four partitions of the topic have."""
    return sum(inbox.end_of(topic, partition) for partition in range(4))
