"""The `outbox` command in a stack directory of its own, and which processes work there: for tests of the stack."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from outbox_local.stack.process import Identity
from outbox_local.stack.state import State

LIMIT = 120.0
"""Seconds after which a command counts as hanging."""


class StackCommand:
    """Runs `outbox up`, `env` and `down` as a user would, in one directory."""

    def __init__(self, directory: Path, **environment: str) -> None:
        """Take the stack's directory and what the user's environment adds."""
        self.directory = directory
        self.told = ""
        """What the first `outbox up` printed, where somebody kept it."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith("OUTBOX_")}
        if cache := os.environ.get("OUTBOX_CACHE"):
            clean["OUTBOX_CACHE"] = cache
        self.environment = {
            **clean,
            "OUTBOX_STATE": str(directory),
            "OUTBOX_STACK_FROM": "embedded",
            **environment,
        }

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            self.words(*arguments),
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )

    def succeed(self, *arguments: str, **environment: str) -> str:
        """Run a command that must succeed; answer what it printed."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command and do not wait for it."""
        return subprocess.Popen(
            self.words(*arguments),
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def addresses(self) -> dict[str, str]:
        """The two addresses that `outbox env` prints; its directory is checked here."""
        told: dict[str, str] = json.loads(self.succeed("env", "--json"))
        assert told.pop("OUTBOX_STATE") == str(self.directory)
        return told

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Run one statement in the stack's database."""
        with psycopg.connect(self.addresses()["OUTBOX_DSN"], autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def state(self) -> State:
        """What the state file says now."""
        state = State.load(self.directory)
        assert state is not None
        return state

    def processes(self) -> list[Identity]:
        """Every process that works in this stack's directories, whatever the state file knows of it."""
        state = State.load(self.directory)
        places = [str(self.directory), *([state.scratch] if state and state.scratch else [])]
        return [identity for entry in Path("/proc").iterdir() if (identity := _working_in(entry, places))]

    def words(self, *arguments: str) -> list[str]:
        """The command line that runs `outbox` with these arguments."""
        return [sys.executable, "-P", "-m", "outbox_relay.cli.main", *arguments]


@contextmanager
def emptied_stack(directory: Path) -> Iterator[StackCommand]:
    """Yield the command for a directory without a stack; at the end nothing of one is left there."""
    command = StackCommand(directory)
    yield command
    command.run("down", "--wipe")
    assert command.processes() == []


def _working_in(entry: Path, places: list[str]) -> Identity | None:
    if not entry.name.isdigit():
        return None
    try:
        command = (entry / "cmdline").read_bytes().decode(errors="replace")
        cwd = str((entry / "cwd").readlink())
    except OSError:
        return None
    if any(place in command or cwd.startswith(place) for place in places):
        return Identity.of(int(entry.name))
    return None


def kill(process: Identity | None) -> None:
    """Kill a process with SIGKILL."""
    assert process is not None
    process.send(signal.SIGKILL)
