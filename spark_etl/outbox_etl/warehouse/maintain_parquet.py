"""Maintenance of a Parquet warehouse: small files are joined by a new manifest, old manifests and their files go."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import ConcurrentRunError, TargetError
from outbox_etl.warehouse.maintain_request import ALL, FILE, SMALL, MaintenanceRequest, TableResult
from outbox_etl.warehouse.manifest import FOLDER, DataFile, Manifest
from outbox_etl.warehouse.parquet import ParquetTarget
from outbox_etl.warehouse.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from outbox_etl.options.settings import Settings


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that is there."""

    path: str
    """Below the warehouse."""
    bytes: int
    modified: float
    """Seconds since 1970."""


class WarehouseFiles:
    """The warehouse's files, through Hadoop: a local directory is one of its file systems."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark._jvm
        java: Any = spark._jsc
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._io: Any = jvm.org.apache.commons.io.IOUtils
        self._files: Any = self._path(root).getFileSystem(java.hadoopConfiguration())
        self._root = str(self._files.makeQualified(self._path(root)).toString()).rstrip("/")

    def below(self, folder: str) -> list[StoredFile]:
        """All files in a folder and its folders."""
        place = self._path(f"{self._root}/{folder}")
        if not self._files.exists(place):
            return []
        found, listing = [], self._files.listFiles(place, True)
        while listing.hasNext():
            status = listing.next()
            path = str(status.getPath().toString()).removeprefix(f"{self._root}/")
            found.append(StoredFile(path, status.getLen(), status.getModificationTime() / 1000))
        return found

    def read(self, path: str) -> str:
        """A small file's text."""
        stream = self._files.open(self._path(f"{self._root}/{path}"))
        try:
            return str(self._io.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it."""
        self._files.delete(self._path(f"{self._root}/{path}"), True)


class ParquetMaintenance(ParquetTarget):
    """Tends a Parquet warehouse as its newest manifest has it."""

    def __init__(
        self, spark: SparkSession, settings: Settings, request: MaintenanceRequest, say: Callable[[str], None]
    ) -> None:
        super().__init__(spark, settings)
        self._request, self._say = request, say
        self._store = WarehouseFiles(spark, self._root)

    def run(self) -> list[TableResult]:
        """Join small files table by table, then delete what no kept manifest names.

        Manifests go before their files: a reader that finds a manifest finds its files.
        """
        tables = [table for table in ALL if table.name in self._now.tables]
        before = {table.name: len(self._files(table)) for table in tables}
        stored = {table.name: self._store.below(table.name) for table in tables}
        for table in tables:
            self._join(table, {file.path: file.bytes for file in stored[table.name]})
        expired = self._expire()
        named = self._named()
        done = []
        for table in tables:
            files = self._files(table)
            sizes = {file.path: file.bytes for file in self._store.below(table.name)}
            deleted = self._delete(table, stored[table.name], named)
            total = sum(sizes[file.path] for file in files)
            done.append(TableResult(table.name, before[table.name], len(files), total, expired, 0, deleted))
            self._say(f"{table.name}: {before[table.name]} files, now {len(files)}; {deleted} deleted")
        return done

    def _join(self, table: Table, sizes: dict[str, int]) -> None:
        """Write small files again as few, each with a narrow range of the table's first sort column."""
        small = [file for file in self._files(table) if sizes.get(file.path, FILE) < SMALL]
        if len(small) < 2:
            return
        parts = max(1, round(sum(sizes[file.path] for file in small) / FILE))
        if parts >= len(small):
            return
        rows = self._rows(table, small).repartitionByRange(parts, *table.order)
        new = self._write(table, rows)
        if _rows(new) != _rows(small):
            raise TargetError(
                f"{self._root}: {table.name} has {_rows(small)} rows in small files by the manifest, and "
                f"{_rows(new)} were found there. Nothing was changed: a file was altered"
            )
        self._swap(table, small, new)
        self._commit()

    def _expire(self) -> int:
        """Delete manifests that were replaced long ago."""
        files = self._store.below(FOLDER)
        versions = sorted((file for file in files if file.path.endswith(".json")), key=lambda file: file.path)
        limit, newest = time() - self._request.keep.total_seconds(), versions[-self._request.newest :]
        # (a reader may have taken a version until its successor came)
        old = [file for file, successor in itertools.pairwise(versions) if successor.modified < limit]
        gone = [file for file in old if file not in newest]
        for file in gone:
            self._store.delete(file.path)
        return len(gone)

    def _named(self) -> set[str]:
        """The files that a manifest names. One that cannot be read is an error: then nothing is deleted."""
        named: set[str] = set()
        highest = Manifest()
        for file in self._store.below(FOLDER):
            if file.path.endswith(".json"):
                manifest = Manifest.of(self._store.read(file.path), file.path)
                highest = max(highest, manifest, key=lambda each: each.version)
                named.update(each.path for table in manifest.tables.values() for each in table.files)
        if highest != self._now:
            # The lock says that there is no other run; its connection may have broken.
            raise ConcurrentRunError(
                f"{self._root}: the newest manifest is version {highest.version}, not {self._now.version} as "
                "maintenance left it; no file was deleted: run `outbox etl maintain` again"
            )
        return named

    def _delete(self, table: Table, stored: Sequence[StoredFile], named: set[str]) -> int:
        """Delete old files that no manifest names; a folder as a whole once nothing in it is named."""
        limit = time() - self._request.orphans.total_seconds()
        folders: dict[str, list[StoredFile]] = {}
        for file in stored:
            folders.setdefault("/".join(file.path.split("/")[:2]), []).append(file)
        count = 0
        for folder, files in folders.items():
            old = [file for file in files if file.path not in named and file.modified < limit]
            count += sum(file.path.endswith(".parquet") for file in old)
            if len(old) == len(files):
                self._store.delete(folder)
                continue
            for file in old:
                if file.path.endswith(".parquet"):
                    self._store.delete(file.path)
        return count


def _rows(files: Sequence[DataFile]) -> int:
    return sum(file.rows for file in files)
