"""The code and the commands of README.md run as they stand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from outbox import Message
from tests.support.inbox_stage import InboxStage
from tests.support.servers import MakeDatabase
from tests.support.topics import Topics
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIMIT_S = 120
GIVEN = ("pip install ", "outbox up", 'eval "$(outbox env)"')
"""Lines whose work is done already where servers are given; `outbox up` and `env` have tests of their own."""


@pytest.fixture
def inbox(database: str, bootstrap_servers: str) -> Iterator[InboxStage]:
    """A database, and a group of this test."""
    stage = InboxStage(database, bootstrap_servers)
    yield stage
    stage.close()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


*PRODUCERS, CONSUMER, ADAPTER = blocks("python")


def test_the_python_code_sends_a_message_and_decides_a_half_message(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_DSN", database)
    names: dict[str, object] = {}
    for again in range(2):  # pasted twice, it does the same once more
        for block in PRODUCERS:
            exec(compile(block, "README.md", "exec"), names)
        with psycopg.connect(database) as conn:
            found = conn.execute(
                "SELECT topic, key, state, producer_group FROM outbox.message ORDER BY id"
            ).fetchall()
            rows = conn.execute(
                "SELECT id, state FROM orders UNION SELECT id, state FROM payments"
            ).fetchall()
        assert found == [
            ("orders", b"o-2", "COMMITTED", "orders"),
            ("payments", b"p-7", "COMMITTED", "payments"),
        ] * (again + 1)
        assert sorted(rows) == [("o-2", "paid"), ("p-7", "paid")]


def test_the_python_code_of_sqlalchemy_sends_in_the_transaction_of_the_session(database: str) -> None:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://", 1))
    with Session(engine) as session:
        exec(compile(ADAPTER, "README.md", "exec"), {"session": session, "Message": Message})
        session.commit()
        assert session.execute(text("SELECT key FROM outbox.message")).all() == [(b"o-2",)]
    engine.dispose()


@pytest.mark.feature("S-75")
def test_the_python_code_of_the_consumer_applies_a_message(
    inbox: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTBOX_DSN", inbox.dsn)
    monkeypatch.setenv("OUTBOX_BOOTSTRAP_SERVERS", inbox.bootstrap_servers)
    inbox.conn.execute("CREATE TABLE points (order_id text, points integer)")
    inbox.produce(topic, "o-1", "sent", tags="sent")
    inbox.produce(topic, "o-2", "paid", tags="paid")
    inbox.flush()
    own = CONSUMER.replace('"orders"', repr(topic)).replace('"points", {', f"{inbox.group!r}, {{")
    names: dict[str, Any] = {"os": os}
    exec(compile(own, "README.md", "exec"), names)
    with names["points"]:
        wait_until(lambda: inbox.count("points"), "a message is applied")
    assert inbox.conn.execute("SELECT * FROM points").fetchall() == [("o-2", 10)]


def test_the_commands_publish_a_first_message_and_end_healthy(
    make_database: MakeDatabase, bootstrap_servers: str, tmp_path: Path
) -> None:
    """Against given servers, with topics of this test's own names; ended by the README's own words."""
    (block,) = [block for block in blocks("sh") if "outbox up" in block]
    lines = [line for line in block.splitlines() if not line.startswith(GIVEN)]
    assert len(block.splitlines()) - len(lines) == len(GIVEN)
    (ending,) = re.findall(r"`(kill [^`]+)` stops relay and checker", README)
    orders, payments = Topics.new_name(), Topics.new_name()
    script = "\n".join(["set -e", *lines, ending, "wait"])
    script = re.sub(r"\borders\b", orders, script)
    script = re.sub(r"\bpayments\b", payments, script)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "OUTBOX_DSN": make_database(migrated=False),
        "OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers,
    }
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            out, err = shell.communicate(timeout=LIMIT_S)
        except BaseException:
            os.killpg(shell.pid, signal.SIGKILL)
            raise
    logs = "".join((tmp_path / name).read_text() for name in ("relay.log", "checker.log"))
    assert shell.returncode == 0, out + err + logs
    assert f"is stored for topic {orders}" in out
    assert re.search(
        r"^partition \d+  offset 0  .*  key o-1\n(  outbox-.*\n)+  \{\"state\": \"paid\"\}$", out, re.M
    )
    assert re.search(rf"^ *\d+ +(PUBLISHED|COMMITTED) +{orders} +o-1 ", out, re.M)
    assert re.search(r"^healthy$", out, re.M)
    assert "Traceback" not in logs
