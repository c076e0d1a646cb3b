"""The state of Iceberg's tables, read from their metadata: what was committed since another state, which files count.

A commit may add rows, and may put files in the place of others with the same rows (Iceberg's `replace`, a compaction).
Only the job's own commits, which are signed, may change rows: it merges what became of messages, and writes again the
events and publications of a run that died. After any other commit that takes rows away, and after a table was rolled
back or restored, nothing that was verified before counts.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from outbox_etl.warehouse import avro
from outbox_etl.warehouse.evidence import Doubt, Evidence, LocalPlace, Place, Span, StateFile
from outbox_etl.warehouse.files import local_path
from outbox_etl.warehouse.tables import CORE, Table

FORMAT = "iceberg"
SIGNED = {"outbox.by": "outbox-etl"}
"""The property that each commit of the job to a core table carries."""
SAME_ROWS = ("append", "replace")
TAKES = ("deleted-data-files", "deleted-records", "added-delete-files", "added-position-deletes",
         "added-equality-deletes", "added-dvs")  # fmt: skip
"""Counts in a commit's summary of files and rows that it takes away, or marks as deleted."""
GONE = 2
"""The status of a manifest's entry that is left from a file of before."""
OF_A_PATH = re.compile(r"^v(\d+)(\.gz)?\.metadata\.json$|^v(\d+)\.metadata\.json\.gz$")
"""The names of metadata where the path itself is the catalog."""


@dataclass(frozen=True)
class TableState:
    """One table as its metadata has it."""

    table: Table
    metadata: Mapping[str, Any]
    location: str
    """Where the metadata is."""
    place: Place

    @property
    def snapshot(self) -> int | None:
        """The snapshot that counts."""
        number = self.metadata.get("current-snapshot-id")
        return None if number in (None, -1) else int(number)

    @cached_property
    def _snapshots(self) -> dict[int, Mapping[str, Any]]:
        return {int(each["snapshot-id"]): each for each in self.metadata.get("snapshots") or ()}

    def evidence(self) -> dict[str, Any]:
        """Name the state."""
        return {
            "uuid": self.metadata["table-uuid"],
            "snapshot": self.snapshot,
            "sequence": self.metadata.get("last-sequence-number", 0),
            "metadata": self.location,
        }

    def doubt(self, told: Mapping[str, Any]) -> Doubt | None:
        """Find out whether the table has grown out of the state that `evidence` named."""
        name, was = self.table.name, told["snapshot"]
        if self.metadata["table-uuid"] != told["uuid"]:
            return Doubt(f"{name} is another table than the one that was verified")
        newer, at = [], self.snapshot
        while at != was:
            each = None if at is None else self._snapshots.get(at)
            if each is None:
                if was in self._snapshots or self.metadata.get("last-sequence-number", 0) < told["sequence"]:
                    return Doubt(
                        f"{name} was rolled back or restored: it is not in the state that was verified"
                    )
                text = f"the snapshot of {name} that was verified has expired: what became of its rows is not known"
                return Doubt(text, is_loss=False)
            newer.append(each)
            at = each.get("parent-snapshot-id")
        for each in newer:
            summary = each.get("summary") or {}
            if summary.get("operation") in SAME_ROWS or SIGNED.items() <= summary.items():
                continue
            if any(int(summary.get(count, 0)) for count in TAKES):
                text = f"snapshot {each['snapshot-id']} of {name} removed or changed rows, and is not of outbox etl"
                return Doubt(text)
        return None

    @cached_property
    def manifests(self) -> list[str]:
        """The files that list the table's files, and the list of these."""
        if self.snapshot is None:
            return []
        listed = self._snapshots[self.snapshot]["manifest-list"]
        return [listed, *(each["manifest_path"] for each in avro.records(self.place.read(listed)))]

    @cached_property
    def files(self) -> list[StateFile]:
        """The files that the table is made of, with those that mark rows as deleted."""
        return [file for manifest in self.manifests[1:] for file in self._listed(manifest)]

    def _listed(self, manifest: str) -> Iterator[StateFile]:
        key = self.table.order[0]
        schemas = self.metadata.get("schemas") or [self.metadata["schema"]]
        number = next(each["id"] for schema in schemas for each in schema["fields"] if each["name"] == key)
        for entry in avro.records(self.place.read(manifest)):
            if entry["status"] == GONE:
                continue
            file = entry["data_file"]
            of_rows = file.get("content", 0) == 0  # (marks name positions in files, not ids)
            low, high = (
                _bound(file.get(name), number) if of_rows else None
                for name in ("lower_bounds", "upper_bounds")
            )
            yield StateFile(file["file_path"], file["file_size_in_bytes"], low, high)


def _bound(bounds: Any, number: int) -> int | None:
    """The smallest or largest value of a column of integers; None: the file has no measure of it."""
    for each in bounds or ():
        if each["key"] == number:
            return int.from_bytes(each["value"], "little", signed=True)
    return None


@dataclass(frozen=True)
class IcebergState:
    """The core tables as their metadata has them."""

    tables: Sequence[TableState]
    place: Place
    of_a_path: bool
    """Whether the place itself is the catalog, so that anybody who reads it finds the tables."""

    def evidence(self) -> Evidence:
        """Name this state."""
        named = {each.table.name: each.evidence() for each in self.tables}
        return {"format": FORMAT, "of_a_path": self.of_a_path, "tables": named}

    def doubt(self, evidence: Evidence) -> Doubt | None:
        """Find out whether all tables have grown out of that state; a loss comes before what is not known."""
        if evidence.get("format") != FORMAT:
            return Doubt("it is another warehouse than the one that was verified")
        found = [each.doubt(evidence["tables"][each.table.name]) for each in self.tables]
        doubts = [each for each in found if each is not None]
        return min(doubts, key=lambda each: not each.is_loss, default=None)

    def doubt_files(self, span: Span | None = None) -> Doubt | None:
        """Find out whether the files are there and whole."""
        for each in self.tables:
            root = str(each.metadata["location"])
            try:
                files = [file for file in each.files if span is None or file.may_hold(span)]
            except (OSError, ValueError, KeyError) as error:
                return Doubt(f"the files of {each.table.name} cannot be listed: {error}")
            wrong = self.place.wrong(files, [root])
            if not wrong and span is not None and isinstance(self.place, LocalPlace):
                wrong = self.place.damaged(files)
            if wrong:
                return Doubt(wrong)
        return None

    def settle(self) -> None:
        """Write to disk what a machine that loses its power could forget; other places keep what they were given."""
        if isinstance(self.place, LocalPlace):
            for each in self.tables:
                paths = [each.location, *each.manifests, *(file.location for file in each.files)]
                self.place.settle(
                    [local_path(path) for path in paths], local_path(str(each.metadata["location"]))
                )


def metadata_of(data: bytes) -> Mapping[str, Any]:
    """Read a table's metadata.

    Raises:
        ValueError: it is something else.
    """
    found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    if not isinstance(found, dict) or "table-uuid" not in found:
        raise ValueError("it is not the metadata of a table")
    return found


def is_of_a_path(location: str) -> bool:
    """Whether metadata of this name is found without a catalog."""
    return bool(local_path(location)) and bool(OF_A_PATH.match(location.rpartition("/")[2]))


def in_a_path(evidence: Evidence, place: LocalPlace) -> IcebergState:
    """The tables that evidence names as they are now, where the path is the catalog.

    Raises:
        OSError: a table is gone.
        ValueError: its metadata is damaged.
    """
    found = []
    for table in CORE:
        folder = Path(local_path(evidence["tables"][table.name]["metadata"])).parent
        location = str(_newest(folder))
        found.append(TableState(table, metadata_of(place.read(location)), location, place))
    return IcebergState(found, place, of_a_path=True)


def _newest(folder: Path) -> Path:
    """The metadata that counts: the hint's, or the last one that follows it without a gap, as Hadoop finds it."""
    versions = {
        int(match[1] or match[3]): path for path in folder.iterdir() if (match := OF_A_PATH.match(path.name))
    }
    if not versions:
        raise FileNotFoundError(f"there is no metadata in {folder}")
    try:
        version = int((folder / "version-hint.text").read_text())
    except (OSError, ValueError):
        version = max(versions)
    while version + 1 in versions:
        version += 1
    if version not in versions:
        raise FileNotFoundError(f"the metadata of version {version} is gone from {folder}")
    return versions[version]
