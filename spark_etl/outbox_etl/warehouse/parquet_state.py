"""The state of a Parquet warehouse: a version of its manifest, which is written once and names every file."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outbox_etl.errors import TargetError
from outbox_etl.warehouse.evidence import Doubt, Evidence, LocalPlace, Place, Span, StateFile
from outbox_etl.warehouse.files import local_path
from outbox_etl.warehouse.manifest import FOLDER, LocalManifests, Manifest, name_of_version
from outbox_etl.warehouse.tables import CORE, MESSAGE_HISTORY

FORMAT = "parquet"


@dataclass(frozen=True)
class ParquetState:
    """The core tables as a manifest has them."""

    manifest: Manifest
    root: str
    """Where the warehouse is."""
    place: Place

    def evidence(self) -> Evidence:
        """Name this state."""
        return {
            "format": FORMAT,
            "of_a_path": bool(local_path(self.root)),
            "root": self.root,
            "identity": self.manifest.identity,
            "version": self.manifest.version,
            "sha256": _digest(self.manifest),
            "messages": self._messages(),
        }

    def doubt(self, evidence: Evidence) -> Doubt | None:
        """Find out whether the manifest follows that one, and has no fewer messages."""
        if evidence.get("format") != FORMAT or evidence["identity"] != self.manifest.identity:
            return Doubt("it is another warehouse than the one that was verified")
        version = evidence["version"]
        if self.manifest.version < version:
            return Doubt(
                f"it is an older state: manifest {self.manifest.version}, and {version} was verified"
            )
        try:
            name = f"{self.root.rstrip('/')}/{FOLDER}/{name_of_version(version)}"
            then = (
                self.manifest
                if version == self.manifest.version
                else Manifest.of(self.place.read(name), name)
            )
        except OSError:
            text = (
                f"manifest {version}, which was verified, has expired: what became of its rows is not known"
            )
            return Doubt(text, is_loss=False)
        except TargetError as error:
            return Doubt(str(error))
        if _digest(then) != evidence["sha256"]:
            return Doubt(f"it was restored: manifest {version} is not the one that was verified")
        if self._messages() < evidence["messages"]:
            return Doubt(f"it has {self._messages()} messages, and {evidence['messages']} were verified")
        return None

    def doubt_files(self, span: Span | None = None) -> Doubt | None:
        """Find out whether the files are there and whole."""
        files = [file for file in self._files() if span is None or file.may_hold(span)]
        wrong = self.place.wrong(files, [self.root])
        if not wrong and span is not None and isinstance(self.place, LocalPlace):
            wrong = self.place.damaged(files)
        return Doubt(wrong) if wrong else None

    def settle(self) -> None:
        """Do nothing: the files of a manifest are on disk before it is written."""

    def _files(self) -> Sequence[StateFile]:
        return [
            StateFile(f"{self.root.rstrip('/')}/{file.path}", low=file.low, high=file.high)
            for table in CORE
            if table.name in self.manifest.tables
            for file in self.manifest.tables[table.name].files
        ]

    def _messages(self) -> int:
        table = self.manifest.tables.get(MESSAGE_HISTORY.name)
        return sum(file.rows for file in table.files) if table else 0


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(manifest.text().encode()).hexdigest()


def in_a_path(evidence: Evidence, place: LocalPlace) -> ParquetState:
    """The warehouse that evidence names as it is now.

    Raises:
        TargetError: it is gone or damaged.
    """
    root = evidence["root"]
    return ParquetState(LocalManifests(Path(local_path(root))).newest(), root, place)
