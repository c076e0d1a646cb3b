"""Journals that other processes write, read while they grow."""

from __future__ import annotations

from pathlib import Path


class JournalTail:
    """Reads what a process has added to its journal since the last read; never half a line."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0

    def new_lines(self) -> list[str]:
        """The lines that are new."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._at)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._at += len(whole) + len(newline)
        return whole.decode().splitlines() if newline else []
