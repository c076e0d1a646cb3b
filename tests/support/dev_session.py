"""`outbox dev` as a process, with what it prints and which processes it has: for its tests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outbox_local.stack.process import Identity, family
from tests.support.stack_command import LIMIT, StackCommand
from tests.support.waiting import wait_until

RUNNING = "running; Ctrl-C"


class DevSession:
    """A session that was started in the directory of a stack."""

    def __init__(self, stack: StackCommand, lines: Path, *arguments: str) -> None:
        self.stack, self._lines = stack, lines
        with lines.open("w") as output:
            self.process = subprocess.Popen(
                stack.words("dev", *arguments), env=stack.environment, stdout=output, stderr=output
            )

    @property
    def shown(self) -> str:
        """All that it has printed."""
        return self._lines.read_text()

    @property
    def objects(self) -> list[dict[str, Any]]:
        """What it has printed with --json, without a line that is not complete."""
        return [json.loads(line) for line in self.shown.splitlines(keepends=True) if line.endswith("\n")]

    @property
    def exports(self) -> dict[str, str]:
        """The exports that it printed for people."""
        return dict(re.findall(r"^export (\w+)=(.*)$", self.shown, re.MULTILINE))

    def wait_until_shown(self, text: str) -> None:
        """Wait for a text in its output; fails when the session ends without it."""
        wait_until(lambda: text in self.shown or self.process.poll() is not None, f"it prints {text!r}")
        assert text in self.shown, self.shown

    def child(self, command: str) -> Identity | None:
        """Find its process that runs `outbox COMMAND run`."""
        for identity in family(self.process.pid):
            try:
                words = Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            pairs = [words[at : at + 2] for at in range(len(words))]
            if [
                command.encode(),
                b"run",
            ] in pairs and b"-c" not in words:  # not the launcher, which becomes it
                return identity
        return None

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """Signal it, and wait for its exit code."""
        self.process.send_signal(number)
        return self.process.wait(LIMIT)


@contextmanager
def dev_session(stack: StackCommand, lines: Path, *arguments: str) -> Iterator[DevSession]:
    """Run `outbox dev` for the block, from where it runs."""
    session = DevSession(stack, lines, *arguments)
    try:
        session.wait_until_shown(RUNNING)
        wait_until(
            lambda: re.search(r"^export OUTBOX_BOOTSTRAP_SERVERS=.*\n", session.shown, re.MULTILINE),
            "its exports",
        )
        yield session
    finally:
        if session.process.poll() is None:
            session.end()
