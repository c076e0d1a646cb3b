"""The claim of a directory: a file with a lock, so that one `outbox dev` runs there and the next reports it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from outbox_local.stack.state import DEV_FILE


@dataclass(frozen=True, slots=True)
class Running:
    """What the owner of a claim has written down."""

    pid: int
    environment: dict[str, str]
    """What points commands and services at it; empty while it starts."""


class Owner:
    """A claim that is held: the lock is on the open file, and dies with the process."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.write({})

    def write(self, environment: dict[str, str]) -> None:
        """Write down what runs here."""
        self._file.seek(0)
        self._file.truncate()
        json.dump({"pid": os.getpid(), "environment": environment}, self._file)
        self._file.flush()


@contextlib.contextmanager
def claim(directory: Path) -> Iterator[Owner | Running]:
    """Owner the directory for the block; yields what runs there instead when another process has claimed it.

    The file is removed at the end, while its lock is held: the next process opens a new one. One that had
    opened the old file before gets its lock afterwards, finds that the path names another file, and opens that.
    """
    path = directory / DEV_FILE
    while True:
        directory.mkdir(parents=True, exist_ok=True)
        # It holds the password of the local database.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield _read(file)
                return
            with contextlib.suppress(FileNotFoundError):
                if not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    continue
                try:
                    yield Owner(file)
                finally:
                    path.unlink(missing_ok=True)
                return


def _read(file: IO[str]) -> Running:
    """Read the owner's words; it may be in the middle of writing them."""
    try:
        found: dict[str, Any] = json.load(file)
    except ValueError:
        return Running(0, {})
    return Running(found["pid"], found["environment"])
