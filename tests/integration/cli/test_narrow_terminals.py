"""Every list at a terminal of 60, 80 and 120 columns."""

from __future__ import annotations

from typing import Any

import pytest
from rich.cells import cell_len

from outbox_relay.cli import layout, output
from outbox_relay.cli.main import main
from tests.support.command_tree import leaves
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import Connection, insert

TOPIC, GROUP = "customer-orders-of-the-european-shop", "payments-of-the-european-shop"
RELAY = "shop-relay-6d5f7c9b84-x2x7k:4711:0123456789abcdef"
MORE = {
    "inbox ls": ["--without-kafka"],
    "history ls": ["--without-warehouse"],
    "consumers show": [GROUP],
    "dlq summary": [],
    "status": [],
    "db partitions": [],
    "db check": [],
    "config show": ["relay", "run"],
}
NOT_TABLES = {"metrics ls": "pairs of lines, without a table"}


@pytest.fixture
def servers(database: str, conn: Connection) -> dict[str, str]:
    """A database with something in each list, by long names."""
    insert(conn, TOPIC, "order-000000001", "b", state="UNKNOWN", producer_group=GROUP, biz_id="p-7")
    insert(conn, TOPIC, "order-000000002", "b", tags=["created", "paid"])
    conn.execute(
        "INSERT INTO outbox.topic (name, message_type, partitions) VALUES (%s, 'MIXED', 12)", [TOPIC]
    )
    conn.execute(
        "INSERT INTO outbox.consumer_group (name, orderly, subscription) VALUES (%s, false, '{}')", [GROUP]
    )
    return {"OUTBOX_DSN": database}


@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_list_fits_or_shows_pairs(
    servers: dict[str, str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """A line is longer only if one word of it is, or if it is a pair of a name and its value."""
    lists = [" ".join(path) for path, _ in leaves(main) if path[-1] == "ls"]
    tables: list[list[str]] = []
    layout_of = layout.lines_of

    def kept(*given: Any) -> list[list[str]]:
        lines = layout_of(*given)
        tables.append(["  ".join(line).rstrip() for line in lines])
        return lines

    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(layout, "lines_of", kept)
    for words in [*(one for one in lists if one not in NOT_TABLES), *MORE]:
        tables.clear()
        ran = outbox(*words.split(), *MORE.get(words, []), COLUMNS=str(width), **servers)
        assert ran.code == 0 or words == "db check", (words, ran.err)
        for table in tables:
            assert all(cell_len(line) <= width for line in table), (words, table)
            assert all(line in [each.rstrip() for each in ran.out.splitlines()] for line in table), (
                words,
                ran.out,
            )
        if words in {"message ls", "topic ls", "consumers ls"}:
            assert TOPIC in ran.out or words == "consumers ls", ran.out
        if words in {"consumers ls", "group ls"}:
            assert GROUP in ran.out, ran.out
        if words == "topic ls" and width == 120:
            assert "1,048,588" in ran.out, ran.out
