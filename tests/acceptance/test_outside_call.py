"""The tutorial of a call that costs something: its process is killed during the call, and all of it comes right."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/tutorial/outside-call"
ENTRY = str(ROOT / "tests/support/module_entry.py")
STATES = """
    SELECT p.id, p.state, s.status FROM payments p
    JOIN outbox.message_status s ON s.transaction_id = p.id ORDER BY p.id
"""


@contextmanager
def running(program: Path, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program of the tutorial until the end of the block."""
    path = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, ENTRY, str(os.getpid()), str(program), *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    """Return the next line that it prints."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def charges(url: str) -> Any:
    """Return what the card company has charged."""
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


@pytest.mark.feature("S-40", "S-44")
def test_a_payment_killed_during_its_call_is_charged_and_published_once(
    database: str, bootstrap_servers: str, topic: str, tmp_path: Path
) -> None:
    service = tmp_path / "payments.py"
    service.write_text(
        (FOLDER / "payments.py").read_text().replace('Message("payments"', f'Message("{topic}"')
    )
    with (
        RelayProcess(database, bootstrap_servers) as relay,
        running(FOLDER / "provider.py", "0") as provider,
        connect(database) as conn,
    ):
        url = next_line(provider)
        environment = {"OUTBOX_DSN": database, "PROVIDER_URL": url}
        with running(service, "pay", "p-7", "420", **environment) as dying:
            assert next_line(dying) == "p-7 is pending"
            wait_until(lambda: "p-7" in charges(url), "the card is charged, and not yet confirmed")
            dying.kill()
        with running(service, "pay", "p-8", "42", **environment) as other:
            assert next_line(other) == "p-8 is pending"
            assert next_line(other) == "p-8 is charged", "others pay meanwhile"
            assert other.wait(30) == 0
        with running(service, "pay", "p-9", "5000", **environment) as other:
            assert next_line(other) == "p-9 is pending"
            wait_until(lambda: "p-9" in charges(url), "it is declined, and not yet told so")
        assert conn.execute(STATES).fetchone() == ("p-7", "pending", "UNKNOWN")
        with running(service, "check", **environment) as checker:
            done = [("p-7", "charged", "PUBLISHED"), ("p-8", "charged", "PUBLISHED")]
            done.append(("p-9", "declined", "ROLLED_BACK"))
            wait_until(lambda: conn.execute(STATES).fetchall() == done, "what was left is settled")
            checker.communicate("\n", timeout=30)
            assert checker.returncode == 0
        relay.stop()
        assert {key: charge["state"] for key, charge in charges(url).items()} == {
            "p-7": "charged",
            "p-8": "charged",
            "p-9": "declined",
        }
    records = read_topic(bootstrap_servers, topic)
    assert sorted(str(record.key) for record in records) == ["b'p-7'", "b'p-8'"]
    assert [record.header("outbox-transaction-id") for record in records if record.key == b"p-7"] == ["p-7"]


def test_the_page_names_programs_and_arguments_that_are_there() -> None:
    page = FOLDER.with_suffix(".md").read_text()
    shown = re.findall(r"^python (\S+)(.*?)(?: &)?$", page, re.MULTILINE)
    assert {Path(program).name for program, _ in shown} == {path.name for path in FOLDER.glob("*.py")}
    for program, arguments in shown:
        assert (ROOT / program).is_file(), program
        verb = shlex.split(arguments)[:1]
        assert not verb or f'"{verb[0]}"' in (ROOT / program).read_text() or verb == ["check"], program
