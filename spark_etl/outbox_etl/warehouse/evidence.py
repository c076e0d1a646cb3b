"""What a certificate names as its evidence, and whether a warehouse still holds it.

The evidence is the state of the core tables that was verified, and worth what it is worth at the moment of a drop: each
drop finds out again whether the warehouse has grown out of that state without losing a row, and whether the files are
there. Each verification asks before it certifies more, so the newest certificate's evidence speaks for all.

Nothing here needs Spark or Iceberg: `outbox history drop` asks the same of a warehouse in a path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outbox_etl.warehouse.files import is_sound, local_path

Evidence = Mapping[str, Any]
"""JSON: the format, and what identifies the state."""
Span = tuple[int, int]
"""Ids or positions: from the first on, below the second."""
PARQUET_ENDS = b"PAR1"


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why evidence counts no more."""

    text: str
    is_loss: bool = True
    """Something verified is gone. False: it is not known any more, so everything has to be verified again."""


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file of the tables as they are now."""

    location: str
    size: int = 0
    """Its bytes; 0: not known."""
    low: int | None = None
    """The smallest and the largest id or position in it; None: not known."""
    high: int | None = None

    def may_hold(self, span: Span) -> bool:
        """Whether rows of these ids may be in it."""
        return (self.low is None or self.low < span[1]) and (self.high is None or self.high >= span[0])


class Place(Protocol):
    """Reads files where a warehouse is."""

    def read(self, location: str) -> bytes:
        """The content of a small file.

        Raises:
            OSError: it is not there.
        """

    def wrong(self, files: Sequence[StateFile], roots: Sequence[str]) -> str:
        """Return what is wrong with the first file that is gone or of another size; `roots` are the folders of all."""


class State(Protocol):
    """The core tables of a warehouse as they are at one moment."""

    def evidence(self) -> Evidence:
        """Name this state."""

    def doubt(self, evidence: Evidence) -> Doubt | None:
        """Find out whether this state has grown out of that one, and no row of that one was removed."""

    def doubt_files(self, span: Span | None = None) -> Doubt | None:
        """Find out whether the files are there and whole: those that may hold rows of these ids, or all."""

    def settle(self) -> None:
        """Write to disk what a machine that loses its power could forget."""


class LocalPlace:
    """The disks of this machine."""

    def __init__(self) -> None:
        self._sound: set[str] = set()
        """Files whose checksums were right: files are never changed."""

    def read(self, location: str) -> bytes:
        """The content of a small file."""
        return Path(local_path(location)).read_bytes()

    def wrong(self, files: Sequence[StateFile], roots: Sequence[str] = ()) -> str:
        """Return what is wrong with the first file that is gone or truncated; empty: nothing is."""
        for file in files:
            try:
                with Path(local_path(file.location)).open("rb") as opened:
                    size = opened.seek(0, 2)
                    opened.seek(max(size - len(PARQUET_ENDS), 0))
                    if (file.size and size != file.size) or opened.read() != PARQUET_ENDS:
                        return f"the file {file.location} is not as long as it was written"
            except FileNotFoundError:
                return f"the file {file.location} is gone"
            except OSError as error:
                return f"the file {file.location} cannot be read: {error.strerror}"
        return ""

    def settle(self, paths: Sequence[str], root: str) -> None:
        """Write files to disk, with the folders below `root` that hold them."""
        folders = {folder for path in paths for folder in Path(path).parents if folder.is_relative_to(root)}
        for path in (*map(Path, paths), *sorted(folders, reverse=True), Path(root)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def damaged(self, files: Sequence[StateFile]) -> str:
        """Return which file does not fit its checksums, which lie next to it; each file is read."""
        for file in files:
            if file.location not in self._sound and not is_sound(local_path(file.location)):
                return f"the file {file.location} is damaged"
            self._sound.add(file.location)
        return ""
