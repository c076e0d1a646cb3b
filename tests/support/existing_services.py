"""The services of the page "Add the outbox to a service that you have": before it, after it, and their customers."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial"
PAGE = (TUTORIAL / "existing-service.md").read_text(encoding="utf-8")
ENTRY = str(Path(__file__).with_name("module_entry.py"))
TOPIC = "order-events"
DECLINED = 5000
STATES = ("placed", "paid", "shipped")


def _acceptance() -> Any:
    spec = importlib.util.spec_from_file_location("acceptance", TUTORIAL / "acceptance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ACCEPTANCE = _acceptance()


class Changed(NamedTuple):
    """Lines that are not blank."""

    added: int
    removed: int


def stated(service: str) -> Changed:
    """Return the lines that the page states for a service."""
    [found] = re.findall(rf"^\| \[{service}\]\(.*\) \| (\d+) \| (\d+) \|$", PAGE, re.MULTILINE)
    return Changed(*map(int, found))


def changed(folder: str) -> Changed:
    """Count the lines of the difference between the two states of a service."""
    marks = []
    for after in sorted((TUTORIAL / folder / "after").rglob("*.py")):
        before = TUTORIAL / folder / "before" / after.relative_to(TUTORIAL / folder / "after")
        lines = difflib.ndiff(before.read_text().splitlines(), after.read_text().splitlines())
        marks += [line[0] for line in lines if line[2:].strip()]
    return Changed(marks.count("+"), marks.count("-"))


def shown(folder: str) -> list[str]:
    """Return the files whose differences the page shows, below the folder of the service."""
    found = re.findall(
        r"^```\{literalinclude\} (\S+)/after/(\S+)\n:diff: \1/before/\2\n```$", PAGE, re.MULTILINE
    )
    return [file for of, file in found if of == folder]


def commands(heading: str) -> list[str]:
    """Return the commands below a heading of the page."""
    [section] = re.findall(rf"^## {heading}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


class Project:
    """A copy of a service, in its first state; `environment` is what its processes get."""

    def __init__(self, folder: str, place: Path, environment: Mapping[str, str]) -> None:
        self._folder, self._place = folder, place / folder
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONDONTWRITEBYTECODE": "1",  # the files are replaced within a second
            **environment,
        }
        shutil.copytree(TUTORIAL / folder / "before", self._place)

    def add_outbox(self, topic: str) -> None:
        """Bring it to its second state, with a topic of the test."""
        shutil.copytree(TUTORIAL / self._folder / "after", self._place, dirs_exist_ok=True)
        for path in self._place.rglob("*.py"):
            path.write_text(re.sub(rf"\b{TOPIC}\b", topic, path.read_text()))

    def command(self, *program: str) -> list[str]:
        """Return the command of one of its processes."""
        return [sys.executable, ENTRY, str(os.getpid()), *program]

    def run(self, *program: str) -> None:
        """Run a program of it to its end, and insist on a good one."""
        ran = subprocess.run(
            self.command(*program),
            cwd=self._place,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{' '.join(program)}\n{ran.stdout}{ran.stderr}"

    @contextmanager
    def serving(self, *program: str) -> Iterator[Any]:
        """Run its server, whose last arguments name the port, and yield what customers ask."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = self.command(*(each.format(port=port) for each in program))
        log = self._place / "server.log"
        with (
            log.open("w") as output,
            subprocess.Popen(
                command, cwd=self._place, env=self.environment, stdout=output, stderr=output
            ) as server,
        ):
            try:

                def listens() -> bool:
                    assert server.poll() is None, log.read_text()
                    with socket.socket() as probe:
                        return probe.connect_ex(("127.0.0.1", port)) == 0

                wait_until(listens, "the service listens")
                yield ACCEPTANCE.Shop(f"http://127.0.0.1:{port}")
            except BaseException:
                sys.stderr.write(log.read_text()[-4000:])
                raise
            finally:
                server.kill()


class Customers:
    """Customers of a shop; `changes` are ids of orders with the number of their state, as the shop confirmed them."""

    def __init__(self, shop: Any) -> None:
        self._shop = shop
        self.changes: list[tuple[str, int]] = []
        self.declined = 0
        """Payments that were refused after the order was changed and the event was sent."""

    def accept(self) -> None:
        """Run the acceptance tests of the services."""
        tests = [test for name, test in vars(ACCEPTANCE).items() if name.startswith("test_")]
        assert len(tests) > 3
        for test in tests:
            test(self)

    def order(self, orders: int) -> None:
        """Place orders, pay and ship them, four customers at a time.

        Of each four orders one is declined, and one is placed a second time, which is refused.
        """
        with ThreadPoolExecutor(4) as customers:
            list(customers.map(self._order, range(orders)))

    def _order(self, number: int) -> None:
        id, is_declined = str(uuid4()), number % 4 == 1
        assert self.place(id, DECLINED if is_declined else 20) == 201
        if number % 4 == 2:
            assert self.place(id, 20) == 409
        assert self.pay(id) == (402 if is_declined else 200)
        assert self.ship(id) == (409 if is_declined else 200)

    def place(self, id: str, amount: int) -> int:
        """Place an order, as `Shop` does, which the next ones do as well."""
        return self._note(id, 0, self._shop.place(id, amount), 201)

    def pay(self, id: str) -> int:
        """Pay it."""
        status = self._note(id, 1, self._shop.pay(id), 200)
        self.declined += status == 402
        return status

    def ship(self, id: str) -> int:
        """Ship it."""
        return self._note(id, 2, self._shop.ship(id), 200)

    def state(self, id: str) -> str | None:
        """Read its state."""
        found: str | None = self._shop.state(id)
        return found

    def _note(self, id: str, state: int, status: int, good: int) -> int:
        if status == good:
            self.changes.append((id, state))
        return status
