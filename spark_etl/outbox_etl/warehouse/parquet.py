"""The warehouse as plain Parquet files: new files are written, then one manifest makes them the tables."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from outbox_etl.errors import HEAL, DamagedError, TargetError
from outbox_etl.source.reader import Ids
from outbox_etl.source.window import Watermark
from outbox_etl.warehouse.changes import IDENTITY, merged
from outbox_etl.warehouse.evidence import LocalPlace, Place
from outbox_etl.warehouse.files import MOST_FILES, Between, ParquetFiles
from outbox_etl.warehouse.java_place import JavaPlace
from outbox_etl.warehouse.manifest import DataFile, LocalManifests, RemoteManifests, TableFiles
from outbox_etl.warehouse.parquet_state import ParquetState
from outbox_etl.warehouse.tables import CORE, MESSAGE_HISTORY, Table
from outbox_etl.warehouse.target import Merging, Unwritten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.options.settings import Settings


class ParquetTarget:
    """Files below the warehouse, one folder per table. What `replace` writes is committed with what follows it."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._root = spark, settings.location.rstrip("/")
        self._local = local = settings.local_warehouse
        self._manifests = LocalManifests(local) if local else RemoteManifests(spark, self._root)
        self._now = self._manifests.newest()
        self._folders: list[str] = []
        self._changing = Lock()  # (tables are written at the same time)

    def prepare(self, *tables: Table, origin: Watermark | None = None) -> None:
        """Add the tables that are missing, in a manifest of their own."""
        self._now = self._manifests.newest()
        for table in tables:
            found = self._now.tables.get(table.name)
            if found is not None and found.schema != table.schema:
                raise TargetError(
                    f"{self._root}: {table.name} is another table, with the columns {found.schema}. "
                    "Nothing was changed: give another --warehouse"
                )
        missing = {
            table.name: TableFiles(table.schema) for table in tables if table.name not in self._now.tables
        }
        watermark = self._now.watermark or (origin.properties() if origin else {})
        identity = self._now.identity or uuid.uuid4().hex
        if missing or watermark != self._now.watermark or identity != self._now.identity:
            self._now = replace(
                self._now, identity=identity, tables={**self._now.tables, **missing}, watermark=watermark
            )
            self._commit()

    def watermark(self) -> Watermark | None:
        """Read the watermark of the newest manifest."""
        return Watermark.of(self._manifests.newest().watermark)

    def identity(self) -> str:
        """The uuid that the first manifest got; every later one has it."""
        return self._manifests.newest().identity

    def state(self) -> ParquetState:
        """The newest manifest."""
        place: Place = LocalPlace()
        if self._local is None:
            java: Any = self._spark._jsc
            place = JavaPlace.of_hadoop(self._spark._jvm, self._root, java.hadoopConfiguration())
        return ParquetState(self._manifests.newest(), self._root, place)

    def read(self, table: Table) -> DataFrame:
        """The rows of a table, as this run sees them."""
        return self._rows(table, self._files(table))

    def files(self, table: Table, where: Sequence[Between] | None) -> ParquetFiles | None:
        """All files: the manifest has no range of times. None: only Spark can read them."""
        files = self._files(table) if where is None or where else ()
        if self._local is None or len(files) > MOST_FILES:
            return None
        self._need_content(files)
        return ParquetFiles([str(self._local / file.path) for file in files])

    def top(self) -> int:
        """The highest id, from the manifest."""
        return max((file.high for file in self._files(MESSAGE_HISTORY)), default=0)

    def replace(self, table: Table, rows: DataFrame, condition: str, *, in_order: bool = False) -> int:
        """Put rows in the place of others. Marts are committed at once, the tables of an export with its messages."""
        rest = f.expr(f"NOT coalesce({condition}, false)")
        touched = self._touched(table, self._located(table, self._files(table)).where(condition))
        old = self._rows(table, touched).where(rest)
        new = self._write(table, rows.select(*table.names))
        kept = self._write(table, old) if touched else ()
        self._swap(table, touched, (*new, *kept))
        if table not in CORE:
            self._commit()
        return sum(file.rows for file in new)

    def can_put(self, table: Table) -> bool:
        """No."""
        return False

    def put(self, table: Table, rows: Any, where: Sequence[Between] | None) -> bool:
        """Leave it to `replace`: files without a measure by Spark are in no manifest."""
        return False

    def append(self, messages: Unwritten, ids: Ids, mark: Watermark | None = None) -> int:
        """Add files."""
        new = self._write(MESSAGE_HISTORY, messages.rows(messages.ranges))
        self._swap(MESSAGE_HISTORY, (), new)
        self._commit(mark)
        return sum(file.rows for file in new)

    def merge(self, changes: DataFrame, mark: Watermark | None, how: Merging) -> None:
        """Write the files again that hold one of the messages."""
        near = [
            file
            for file in self._files(MESSAGE_HISTORY)
            if file.low < how.ids.upper and file.high >= how.ids.lower
        ]
        held = self._located(MESSAGE_HISTORY, near).join(changes.select(*IDENTITY), [*IDENTITY], "left_semi")
        touched = list(self._touched(MESSAGE_HISTORY, held))
        if how.lost:
            touched = [
                file
                for file in self._files(MESSAGE_HISTORY)
                if file in touched or any(file.low < ids.upper and file.high >= ids.lower for ids in how.lost)
            ]
        old = self._rows(MESSAGE_HISTORY, touched).alias("t")
        same = f.expr(" AND ".join(f"t.{name} = s.{name}" for name in IDENTITY))
        both = old.join(changes.alias("s"), same, "full_outer").where("t.id IS NOT NULL OR s.is_message")
        new = self._write(MESSAGE_HISTORY, both.selectExpr(*_columns(how)))
        before, after = (sum(file.rows for file in files) for files in (touched, new))
        if after < before:  # a merge takes no message away
            raise DamagedError(
                f"{len(touched)} files of {self._root}/{MESSAGE_HISTORY.name} hold fewer than the {before} messages "
                f"that were written: {', '.join(file.path for file in touched[:3])}. {HEAL}"
            )
        self._swap(MESSAGE_HISTORY, touched, new)
        self._commit(mark)

    def mark(self, mark: Watermark) -> None:
        """Commit a watermark, with what is not committed yet."""
        self._commit(mark)

    def _commit(self, mark: Watermark | None = None) -> None:
        with self._changing:
            watermark = mark.properties() if mark else self._now.watermark
            self._now = replace(self._now, version=self._now.version + 1, watermark=watermark)
            self._manifests.commit(self._now, self._folders)
            self._folders = []

    def _files(self, table: Table) -> tuple[DataFile, ...]:
        found = self._now.tables.get(table.name)
        return found.files if found else ()

    def _rows(self, table: Table, files: Any) -> DataFrame:
        if not files:
            return self._spark.createDataFrame([], table.schema)
        self._need_content(files)
        paths = [f"{self._root}/{file.path}" for file in files]
        return self._spark.read.schema(table.schema).parquet(*paths)

    def _need_content(self, files: Any) -> None:
        """Refuse files without a byte, which Spark leaves out silently; it reports all other damage."""
        if self._local is None:
            return  # (an object store keeps what it was given, whole)
        for path in (self._local / file.path for file in files):
            if not path.is_file() or path.stat().st_size == 0:
                raise DamagedError(f"a file of the warehouse is empty or missing: {path}. {HEAL}")

    def _located(self, table: Table, files: Any) -> DataFrame:
        """The rows with the file that holds each."""
        rows = self._rows(table, files)
        return rows.withColumn("_file", f.col("_metadata.file_path") if files else f.lit(""))

    def _touched(self, table: Table, rows: DataFrame) -> tuple[DataFile, ...]:
        """The files that hold at least one of these rows."""
        paths = {row["_file"] for row in rows.select("_file").distinct().collect()}
        return tuple(
            file for file in self._files(table) if any(path.endswith(f"/{file.path}") for path in paths)
        )

    def _write(self, table: Table, rows: DataFrame) -> tuple[DataFile, ...]:
        """Write files that no manifest names yet, and take their measures."""
        folder = f"{table.name}/{uuid.uuid4().hex}"
        place = f"{self._root}/{folder}"
        rows.sortWithinPartitions(*table.order).write.option("compression", "zstd").parquet(place)
        first = f.col(table.order[0])
        if dict(rows.dtypes)[table.order[0]] == "date":
            first = f.unix_date(first)
        written = self._spark.read.schema(table.schema).parquet(place)
        sums = written.select("_metadata.file_name", first.alias("first")).groupBy("file_name")
        measured = sums.agg(
            f.count("*").alias("rows"), f.min("first").alias("low"), f.max("first").alias("high")
        )
        return tuple(
            DataFile(f"{folder}/{row['file_name']}", row["rows"], row["low"], row["high"])
            for row in sorted(measured.collect(), key=lambda row: str(row["file_name"]))
        )

    def _swap(self, table: Table, gone: Any, new: Any) -> None:
        with self._changing:
            files = TableFiles(
                table.schema, (*(file for file in self._files(table) if file not in gone), *new)
            )
            self._now = replace(self._now, tables={**self._now.tables, table.name: files})
            self._folders += {file.path.rpartition("/")[0] for file in new}


def _columns(how: Merging) -> list[str]:
    """The merged row, as SQL expressions over `t`, the row that was there, and `s`, the change."""
    found = merged(how.window_hi, rebase=how.lost is not None)
    columns = []
    for name in MESSAGE_HISTORY.names:
        kept = f"t.`{name}`"
        if how.lost and name in {"status", "window_hi"}:
            value = "'LOST'" if name == "status" else str(how.window_hi)
            kept = f"CASE WHEN {how.is_lost('t.id')} AND t.status <> 'LOST' THEN {value} ELSE {kept} END"
        both = found.get(name, kept)
        columns.append(
            f"CASE WHEN t.id IS NULL THEN s.`{name}` WHEN s.id IS NULL THEN {kept} ELSE {both} END AS `{name}`"
        )
    return columns
