"""The examples of producers in docs/how-to/rocketmq.md run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import psycopg

from outbox import Message, Outbox
from tests.support.checker_process import CheckerProcess
from tests.support.outbox_command import succeed
from tests.support.rocketmq_scripts import Truth
from tests.support.waiting import wait_until

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "how-to" / "rocketmq.md"


def blocks(language: str) -> list[str]:
    """The examples of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


EXAMPLES = blocks("python")


def test_examples_send_what_they_say(database: str, capsys: Any) -> None:
    truth = Truth(database)
    (tables,) = [block for block in blocks("sql") if "CREATE TABLE" in block]
    truth.conn.execute(tables.encode())
    # The README's example has sent before, in the same database.
    with truth.conn.transaction():
        Outbox(producer_group="orders").send(truth.conn, Message("orders", key="o-2"))
    names: dict[str, Any] = {"dsn": database}
    for example in EXAMPLES:
        if "outbox.rocketmq.consumer" not in example:  # see tests/integration/inbox/test_rocketmq_names.py
            exec(example, names)
    assert capsys.readouterr().out.startswith("SEND_OK ")
    assert truth.states() == ["COMMITTED"] * 4
    assert truth.conn.execute("SELECT id FROM orders UNION ALL SELECT id FROM payments").fetchall() == [
        ("o-7",),
        ("p-7",),
        ("p-8",),
    ]
    with names["shop"]:
        names["shop"].send_message_in_transaction(names["Message"]("orders", checker="payment"))
    assert truth.states() == ["COMMITTED"] * 5
    truth.close()


def test_a_java_service_inserts_a_half_message_that_a_query_decides(database: str) -> None:
    """The texts of its statements, and the commands, as they stand."""
    (java,) = blocks("java")
    (group,) = [block.splitlines()[0] for block in blocks("sh") if "java-orders" in block]
    order, half = [
        "".join(re.findall(r'"([^"]*)"', text)).replace("?", "%s")
        for text in re.findall(r'prepareStatement\(\s*((?:"[^"]*"[\s+]*)+)\)', java)
    ]
    with psycopg.connect(database) as conn:
        (tables,) = [block for block in blocks("sql") if "CREATE TABLE" in block]
        conn.execute(tables.encode())
        conn.execute(order.encode(), ["o-9"])
        conn.execute(half.encode(), ["o-9", "{}", "o-9"])
        conn.execute("UPDATE orders SET state = 'paid'")
    succeed(*shlex.split(group)[1:], OUTBOX_DSN=database)
    with psycopg.connect(database, autocommit=True) as conn, CheckerProcess(database):
        wait_until(
            lambda: conn.execute("SELECT state FROM outbox.message").fetchall() == [("COMMITTED",)],
            "the query has decided",
        )
