"""`outbox shop`, run as a user runs it: every failure switched on, then more by hand on its page, and the proof."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psycopg
import pytest

from outbox_local.shop.names import GROUPS
from outbox_local.stack.process import Identity, family
from tests.support.waiting import wait_until

ORDERS = 24
CLAIMS = {
    *("accounted", "happened", "decided", "lost", "shipped", "credited", "balanced", "emptied", "unpaid"),
}


class Shop:
    """A shop that stays open, and what it prints."""

    def __init__(self, dsn: str, place: Path) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        command = [sys.executable, "-m", "outbox_relay", "shop", "--stay", "--json", "--orders", str(ORDERS)]
        self.temporary, self._output, self._lines = place / "temporary", place / "output", place / "lines"
        self.temporary.mkdir()
        with self._output.open("w") as output, self._lines.open("w") as lines:
            self.process = subprocess.Popen(
                [*command, "--dsn", dsn, "--from", "embedded", "--pause", "0.05"],
                env={**clean, "TMPDIR": str(self.temporary)},
                stdout=output,
                stderr=lines,
            )

    @property
    def shown(self) -> str:
        return self._lines.read_text()

    def wait_until_shown(self, text: str) -> None:
        wait_until(
            lambda: text in self.shown or self.process.poll() is not None, f"it prints {text!r}", seconds=90
        )
        assert text in self.shown, self.shown

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a request as the page does; without a body it is a GET."""
        address = re.search(r"http://127\.0\.0\.1:\d+", self.shown)
        assert address is not None
        data = None if body is None else json.dumps(body).encode()
        request = Request(address[0] + path, data, {"content-type": "application/json"})
        with urlopen(request, timeout=10) as reply:
            text = reply.read().decode()
        return json.loads(text) if "json" in reply.headers["content-type"] else text

    @property
    def console(self) -> str:
        """The address of the operator's pages."""
        found = re.search(r"an operator sees of it: (http://\S+)", self.shown)
        assert found is not None, self.shown
        return found[1]

    def end(self) -> tuple[int, str]:
        """End it as by Ctrl-C; return its exit code and its output."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(60), self._output.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.feature("S-03")
def test_each_paid_order_has_each_effect_once_whatever_fails(database: str, tmp_path: Path) -> None:
    shop = Shop(database, tmp_path)
    try:
        shop.wait_until_shown("the shop stays open")
        for expected in ("service was", "logistics was", "broker was killed", "broker was started"):
            assert expected in shop.shown
        assert "<title>outbox shop</title>" in shop.ask("/")
        with urlopen(shop.console, timeout=10) as page:
            seen = page.read().decode()
        assert all(group in seen for group in GROUPS), "an operator's pages are beside it"
        board = shop.ask("/board")
        proven = [one["text"] for one in board["happenings"] if one["kind"] == "proof"]
        assert len(proven) == len(CLAIMS)
        assert board["counts"]["checks"] >= 4  # 3 that are not confirmed, and 1 whose shop was killed

        # By hand: the half message of this order is confirmed by the checker alone.
        order = {"id": "web-1", "customer": "you", "product": "lamp", "amount": 40}
        shop.ask("/failures/confirm", {})
        shop.ask("/orders", order)
        assert shop.ask("/orders/web-1/payment", {"card": "paid"}) == {"state": "paid"}
        assert shop.ask("/orders/web-1/payment", {"card": "paid"}) == {"state": "paid"}  # charged once
        wait_until(lambda: effects(shop, "web-1") == (1, 1, 1), "it has its effects")

        children = [each for each in family(shop.process.pid) if each != Identity.of(shop.process.pid)]
        assert len(children) >= 6
        code, output = shop.end()
    finally:
        shop.kill()
    assert code == 0, shop.shown
    result = json.loads(output)
    assert result["proven"]
    assert result["claims"].keys() == CLAIMS
    assert result["orders"]["paid"] + result["orders"]["declined"] + result["orders"]["new"] == ORDERS
    assert result["claims"]["shipped"]["checked"] == result["orders"]["paid"] + 1
    wait_until(lambda: not any(child.alive() for child in children), "all its processes are gone")
    assert not list(shop.temporary.iterdir())
    with psycopg.connect(database) as conn:
        assert not conn.execute("SELECT FROM pg_database WHERE datname LIKE 'outbox\\_shop\\_%'").fetchall()


def effects(shop: Shop, order: str) -> tuple[int, int, int]:
    """How often each group has handled an order, as the page shows it."""
    (row,) = [row for row in shop.ask("/board")["orders"] if row["id"] == order]
    return row["shipments"], row["credits"], row["emptied"]


def test_a_broker_of_somebody_else_is_not_killed(database: str, bootstrap_servers: str) -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "outbox_relay",
            "shop",
            "--dsn",
            database,
            "--bootstrap-servers",
            bootstrap_servers,
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1
    assert "--fail broker" in ran.stderr
    assert "leave out --bootstrap-servers" in ran.stderr
