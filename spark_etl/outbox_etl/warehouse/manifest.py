"""The manifest of a Parquet warehouse: which files are its tables, and its watermark; a version is written once.

`_manifests/<version>.json` is complete when it appears, and the highest version counts. Files that no manifest names
are not there for readers: a run that died left them.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import HEAL, ConcurrentRunError, DamagedError, TargetError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
FOLDER = "_manifests"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table; its rows are never changed."""

    path: str
    """Below the warehouse."""
    rows: int
    low: int
    """The smallest and the largest value of the table's first sort column; days since 1970 where that is a date."""
    high: int


@dataclass(frozen=True, slots=True)
class TableFiles:
    """One table: its columns and its files."""

    schema: str
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """One version of the warehouse."""

    version: int = 0
    watermark: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TableFiles] = field(default_factory=dict)
    identity: str = ""
    """Which warehouse it is of; certificates are given to it."""

    def text(self) -> str:
        """The manifest as it is stored, with a checksum: a digit that changed would leave files out."""
        stored = {"format": FORMAT, **asdict(self)}
        return json.dumps({**stored, "sha256": _checksum(stored)}, indent=1)

    @classmethod
    def of(cls, text: bytes | str, place: str) -> Manifest:
        """Read what `text` made.

        Raises:
            TargetError: it is of another format.
            DamagedError: it is something else.
        """
        try:
            found: dict[str, Any] = json.loads(text)
            if found["format"] != FORMAT:
                raise TargetError(
                    f"{place} is of format {found['format']}, expected {FORMAT}: use the job of that release"
                )
            if found.pop("sha256") != _checksum(found):
                raise ValueError("its content does not fit its checksum")
            tables = {
                name: TableFiles(table["schema"], tuple(DataFile(**file) for file in table["files"]))
                for name, table in found["tables"].items()
            }
            return cls(found["version"], found["watermark"], tables, found["identity"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(
                f"{place} is not a manifest of this job, or is damaged: {error}. {HEAL}"
            ) from error


class LocalManifests:
    """Manifests in a directory of this machine: a link to a file makes a version, or fails if there is one."""

    def __init__(self, root: Path) -> None:
        self._root, self._folder = root, root / FOLDER

    def newest(self) -> Manifest:
        """Return the version that counts; version 0 before the first."""
        versions = sorted(self._folder.glob("*.json")) if self._folder.is_dir() else []
        if not versions:
            others = self._root.iterdir() if self._root.is_dir() else ()
            # Files are written after the first manifest: without one, they are somebody else's, or it is lost.
            if other := next((path.name for path in others if path.name != FOLDER), None):
                raise TargetError(
                    f"{self._root} holds {other} and no manifest: it is not a Parquet warehouse, or {FOLDER} was lost. "
                    "Nothing was changed: give another --warehouse, or restore the manifests from a backup"
                )
            return Manifest()
        return Manifest.of(versions[-1].read_bytes(), str(versions[-1]))

    def commit(self, manifest: Manifest, folders: Sequence[str] = ()) -> None:
        """Write a version, once the new folders that it names are on disk.

        Raises:
            ConcurrentRunError: another run has written it.
        """
        for folder in folders:
            _sync_all(self._root / folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / f".{uuid.uuid4().hex}"
        try:
            with part.open("w", encoding="utf-8") as file:
                file.write(manifest.text())
                file.flush()
                os.fsync(file.fileno())
            (self._folder / name_of_version(manifest.version)).hardlink_to(part)
            _sync(self._folder)
        except FileExistsError:
            raise ConcurrentRunError(
                f"another run committed version {manifest.version} meanwhile; run again"
            ) from None
        finally:
            part.unlink(missing_ok=True)


class RemoteManifests:
    """Manifests on a file system that Spark knows; it must refuse to rename over a file, as HDFS does."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm: Any = jvm
        java: Any = spark._jsc
        configuration = java.hadoopConfiguration()
        self._folder: Any = jvm.org.apache.hadoop.fs.Path(f"{root.rstrip('/')}/{FOLDER}")
        self._context: Any = jvm.org.apache.hadoop.fs.FileContext.getFileContext(
            self._folder.toUri(), configuration
        )
        self._files = self._folder.getFileSystem(configuration)

    def newest(self) -> Manifest:
        """Return the version that counts; version 0 before the first."""
        if not self._files.exists(self._folder):
            root = self._folder.getParent()
            if self._files.exists(root) and len(self._files.listStatus(root)):
                raise TargetError(
                    f"{root} holds files of something else than a Parquet warehouse: give another --warehouse"
                )
            return Manifest()
        names = [status.getPath() for status in self._files.listStatus(self._folder)]
        versions = sorted(
            (path for path in names if path.getName().endswith(".json")), key=lambda path: path.getName()
        )
        if not versions:
            return Manifest()
        stream = self._files.open(versions[-1])
        try:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        finally:
            stream.close()
        return Manifest.of(text, str(versions[-1].toString()))

    def commit(self, manifest: Manifest, folders: Sequence[str] = ()) -> None:
        """Write a version; the file system itself keeps what it was given in `folders`.

        Raises:
            ConcurrentRunError: another run has written it.
        """
        hadoop = self._jvm.org.apache.hadoop.fs
        part = hadoop.Path(self._folder, f".{uuid.uuid4().hex}")
        stream = self._files.create(part, True)
        stream.write(bytearray(manifest.text().encode()))
        stream.close()
        try:
            self._context.rename(part, hadoop.Path(self._folder, name_of_version(manifest.version)), [])
        except Exception as error:
            if "FileAlreadyExistsException" not in str(error):
                raise
            raise ConcurrentRunError(
                f"another run committed version {manifest.version} meanwhile; run again"
            ) from None


def _checksum(stored: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(stored, sort_keys=True).encode()).hexdigest()


def name_of_version(version: int) -> str:
    """The file of a version."""
    return f"{version:012d}.json"


def _sync_all(folder: Path) -> None:
    """Without it a power failure could keep the manifest and forget what it names."""
    for path in (*folder.iterdir(), folder, folder.parent, folder.parent.parent):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
