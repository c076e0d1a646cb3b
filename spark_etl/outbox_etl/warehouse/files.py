"""The Parquet files of a table on this machine, for a reader other than Spark."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

CHUNK = 512
"""Bytes that one checksum of Hadoop's local file system covers."""
MOST_FILES = 5_000
"""Files that are worth being read one by one: each costs some round trips to Java, and its end has to be read."""


@dataclass(frozen=True, slots=True)
class Between:
    """Rows of which `column` is at least `low`, and below `high`: integers, or times as ISO 8601 has them."""

    column: str
    low: int | str
    high: int | str


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Where rows of a table lie: Parquet files, which are never changed."""

    whole: Sequence[str] = ()
    """Paths of files of which every row counts."""
    marked: Mapping[str, str] = field(default_factory=dict)
    """Paths of the files of which some rows are deleted, each by the name that the table has for the file."""
    deletes: Sequence[str] = ()
    """Paths of the files that name the deleted rows: `file_path`, by those names, and `pos`, from 0."""

    @property
    def paths(self) -> list[str]:
        """All of them."""
        return [*self.whole, *self.marked.values(), *self.deletes]


def local_path(location: str) -> str:
    """The path of a location on this machine; empty: it is elsewhere."""
    if location.startswith("file:"):
        return f"/{location.removeprefix('file:').lstrip('/')}"
    return location if location.startswith("/") else ""


def checksums_of(path: str) -> Path:
    """Where Hadoop's local file system keeps the checksums of a file, and reads them."""
    return Path(path).with_name(f".{Path(path).name}.crc")


def write_checksums(path: str) -> None:
    """Write the checksums by which Hadoop's local file system finds damage whenever the file is read."""
    with checksums_of(path).open("wb") as sums:
        sums.write(_checksums(path))


def remove(paths: Iterable[str]) -> None:
    """Remove files that no table names, with their checksums, as far as they are there."""
    for path in paths:
        Path(path).unlink(missing_ok=True)
        checksums_of(path).unlink(missing_ok=True)


def is_sound(path: str) -> bool:
    """Whether a file has the checksums that lie next to it; without any it is taken as it is, as Hadoop does."""
    sums = checksums_of(path)
    return not sums.is_file() or sums.read_bytes() == _checksums(path)


def _checksums(path: str) -> bytes:
    parts = [b"crc\0" + struct.pack(">i", CHUNK)]
    with Path(path).open("rb") as file:
        while block := file.read(CHUNK << 11):
            view = memoryview(block)
            found = [zlib.crc32(view[at : at + CHUNK]) for at in range(0, len(view), CHUNK)]
            parts.append(struct.pack(f">{len(found)}I", *found))
    return b"".join(parts)


def date_of(day: int) -> str:
    """A day since 1970 as Iceberg names it in a path."""
    return (date(1970, 1, 1) + timedelta(days=day)).isoformat()
