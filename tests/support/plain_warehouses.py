"""Warehouses that a test writes without Spark: manifests and files of Parquet, tables of Iceberg by pyiceberg."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.expressions import EqualTo

from outbox_etl.warehouse.evidence import Evidence, LocalPlace
from outbox_etl.warehouse.files import write_checksums
from outbox_etl.warehouse.iceberg_state import SIGNED, in_a_path
from outbox_etl.warehouse.manifest import DataFile, LocalManifests, Manifest, TableFiles
from outbox_etl.warehouse.parquet_state import ParquetState
from outbox_etl.warehouse.tables import CORE, MESSAGE_HISTORY


class PlainWarehouse:
    """A Parquet warehouse whose messages are only ids."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._manifests = LocalManifests(root)
        tables = {table.name: TableFiles(table.schema) for table in CORE}
        self.now = Manifest(1, {}, tables, identity=uuid.uuid4().hex)
        self._manifests.commit(self.now)

    def evidence(self) -> Evidence:
        """What a certificate names."""
        return ParquetState(self._manifests.newest(), str(self.root), LocalPlace()).evidence()

    def add(self, first: int, rows: int) -> Path:
        """Commit a file of messages, from this id on; return its path."""
        folder = f"{MESSAGE_HISTORY.name}/{uuid.uuid4().hex}"
        path = self.root / folder / "part-0.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": range(first, first + rows)}), path)
        write_checksums(str(path))
        file = DataFile(f"{folder}/{path.name}", rows, first, first + rows - 1)
        before = self.now.tables[MESSAGE_HISTORY.name]
        self.commit(*before.files, file, folders=(folder,))
        return path

    def commit(self, *files: DataFile, folders: tuple[str, ...] = ()) -> None:
        """Commit a manifest with these files of messages."""
        tables = {**self.now.tables, MESSAGE_HISTORY.name: TableFiles(MESSAGE_HISTORY.schema, files)}
        self.now = replace(self.now, version=self.now.version + 1, tables=tables)
        self._manifests.commit(self.now, folders)


class PlainIceberg:
    """The core tables of an Iceberg warehouse in a path, each with the column that it is sorted by and one more."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._catalog = InMemoryCatalog("plain", warehouse=root.as_uri())
        self._catalog.create_namespace("outbox")
        self._versions = dict.fromkeys((table.name for table in CORE), 0)
        self.tables = {
            table.name: self._catalog.create_table(
                f"outbox.{table.name}", pa.schema([(table.order[0], pa.int64()), ("text", pa.string())])
            )
            for table in CORE
        }
        for table in CORE:
            self.add(table.name, 1, 10)

    def publish(self, name: str) -> None:
        """Let readers of the path find what was committed last, by the names that Hadoop's tables have."""
        self._versions[name] += 1
        folder = self.folder(name)
        metadata = Path(self.tables[name].metadata_location.removeprefix("file://"))
        shutil.copyfile(metadata, folder / f"v{self._versions[name]}.metadata.json")
        (folder / "version-hint.text").write_text(str(self._versions[name]))

    def folder(self, name: str) -> Path:
        """Where the metadata of a table lies."""
        return self.root / "outbox" / name / "metadata"

    def add(self, name: str, first: int, rows: int) -> None:
        """Commit rows as the job does."""
        table = self.tables[name]
        key = table.schema().fields[0].name
        columns = {key: pa.array(range(first, first + rows)), "text": pa.array(["x"] * rows)}
        table.append(pa.table(columns), snapshot_properties=SIGNED)
        self.publish(name)

    def remove(self, name: str, number: int, *, signed: bool) -> None:
        """Commit that a row is gone."""
        table = self.tables[name]
        key = table.schema().fields[0].name
        table.delete(EqualTo(key, number), snapshot_properties=SIGNED if signed else {})
        self.publish(name)

    def roll_back(self, name: str, snapshot: int) -> None:
        """Make an older snapshot the one that counts."""
        self.tables[name].manage_snapshots().set_current_snapshot(snapshot).commit()
        self.publish(name)

    def files(self, name: str, of: str = "0") -> list[Path]:
        """The files of a table that may hold rows from a number on."""
        key = self.tables[name].schema().fields[0].name
        tasks = self.tables[name].scan(row_filter=f"{key} >= {of}").plan_files()
        return [Path(task.file.file_path.removeprefix("file://")) for task in tasks]

    def evidence(self) -> Evidence:
        """What a certificate names."""
        named = {
            table.name: {"metadata": str(self.folder(table.name) / "v1.metadata.json")} for table in CORE
        }
        return in_a_path({"tables": named}, LocalPlace()).evidence()
