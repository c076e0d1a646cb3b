"""The examples of producers in docs/how-to/rocketmq.md run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.support.rocketmq_scripts import Truth

PAGE = Path(__file__).resolve().parent.parent.parent.parent / "docs" / "how-to" / "rocketmq.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_examples_send_what_they_say(database: str, capsys: Any) -> None:
    truth = Truth(database)
    truth.conn.execute("CREATE TABLE orders (id text, state text); CREATE TABLE payments (id text)")
    names: dict[str, Any] = {"dsn": database}
    for example in EXAMPLES:
        if "outbox.rocketmq.consumer" not in example:  # see tests/integration/inbox/test_rocketmq_names.py
            exec(example, names)
    assert capsys.readouterr().out.startswith("SEND_OK ")
    assert truth.states() == ["COMMITTED"] * 3
    assert truth.conn.execute("SELECT id FROM orders UNION ALL SELECT id FROM payments").fetchall() == [
        ("o-7",),
        ("p-7",),
        ("p-8",),
    ]
    with names["shop"]:
        names["shop"].send_message_in_transaction(names["Message"]("orders", checker="payment"))
    assert truth.states() == ["COMMITTED"] * 4
    truth.close()
