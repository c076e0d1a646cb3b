"""The examples of docs/reference/library.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

from outbox import Message, Outbox

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "reference" / "library.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_send_what_they_say(database: str) -> None:
    sending, _, selecting = EXAMPLES
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
