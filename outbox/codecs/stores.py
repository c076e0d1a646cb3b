"""Where large bodies are kept: the two calls that a store has, and a directory as a store.

A store for S3 or the like is a class of yours with `put` and `get`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from datetime import date
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from outbox.errors import ConfigurationError

_NAME = re.compile(r"(\d{4}-\d{2}-\d{2})/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")


def is_object_name(name: str) -> bool:
    """Return whether a name is one that a claim check makes: the day in UTC, a slash, and a UUID."""
    return _NAME.fullmatch(name) is not None


class ObjectStore(Protocol):
    """Keeps bodies by name; any number of threads calls it."""

    def put(self, name: str, body: bytes) -> None:
        """Keep a body; it must be durable when this returns. A name is never used twice."""
        ...

    def get(self, name: str) -> bytes:
        """Return a body.

        Raises:
            KeyError: it has no body of this name.
        """
        ...


class DirectoryStore:
    """A directory that all senders and consumers mount; a folder for each day.

    A body is written under another name, flushed to the disk, and renamed. If the process dies before that, a file that
    ends in `.part` is left, which goes with its day.
    """

    def __init__(self, path: str | Path, *, share_with_group: bool = False) -> None:
        """Take an existing directory. Bodies are for this operating system's user only, whatever the umask is.

        Args:
            path: The directory.
            share_with_group: Bodies are also for the user's group: senders and consumers run as different users of it.

        Raises:
            ConfigurationError: it does not exist: a mount may be missing.
        """
        self._path, self._share_with_group = Path(path), share_with_group
        if not self._path.is_dir():
            raise ConfigurationError(
                f"path: {str(path)!r} is not a directory; create it, or mount it where it is expected"
            )

    def put(self, name: str, body: bytes) -> None:
        """See `ObjectStore`."""
        place = self._place(name)
        with contextlib.suppress(FileExistsError):
            place.parent.mkdir(mode=0o700)
            if self._share_with_group:
                place.parent.chmod(0o770)
        part = place.with_name(f"{place.name}.{uuid4().hex}.part")
        with open(part, "xb", opener=self._open) as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.rename(place)
        for folder in (place.parent, self._path):
            _flush(folder)

    def _open(self, path: str, flags: int) -> int:
        return os.open(path, flags, 0o640 if self._share_with_group else 0o600)

    def get(self, name: str) -> bytes:
        """See `ObjectStore`."""
        try:
            return self._place(name).read_bytes()
        except FileNotFoundError:
            raise KeyError(name) from None

    def drop_days(self, before: date) -> list[date]:
        """Delete the folders of days before this one, with what rolled-back transactions left; return the days.

        Keep a body for as long as Kafka, dead letters and the warehouse keep its message.
        """
        dropped = []
        for folder in sorted(self._path.iterdir()):
            try:
                day = date.fromisoformat(folder.name)
            except ValueError:
                continue
            if day < before:
                shutil.rmtree(folder)
                dropped.append(day)
        return dropped

    def _place(self, name: str) -> Path:
        if not is_object_name(name):
            raise KeyError(name)  # such a name could lead out of the directory
        return self._path / name

    def __repr__(self) -> str:
        return f"DirectoryStore({str(self._path)!r})"


def _flush(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
