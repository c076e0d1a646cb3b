"""The warehouse as Iceberg tables: each write is one snapshot, refused when another run wrote the same in between."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import ConcurrentRunError, TargetError
from outbox_etl.session import CATALOG, NAMESPACE
from outbox_etl.source.clock import refuse_behind
from outbox_etl.source.reader import Ids, lies_among
from outbox_etl.source.window import Watermark
from outbox_etl.statements import statement
from outbox_etl.warehouse import iceberg_commit, iceberg_merge, iceberg_put
from outbox_etl.warehouse.changes import IDENTITY, NEWER, merged
from outbox_etl.warehouse.evidence import LocalPlace, Place
from outbox_etl.warehouse.files import Between, ParquetFiles, local_path
from outbox_etl.warehouse.iceberg_files import Deletes, is_hadoop, planned_files
from outbox_etl.warehouse.iceberg_state import SIGNED, IcebergState, TableState, is_of_a_path, metadata_of
from outbox_etl.warehouse.java_place import JavaPlace
from outbox_etl.warehouse.tables import CORE, MESSAGE_HISTORY, Table
from outbox_etl.warehouse.target import Merging, Unwritten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDE = 100_000
"""Ids from which on the changes of a window lie far apart: to read all columns of what is between would be the work."""
ON_READ, COPY = "merge-on-read", "copy-on-write"
"""A merge on read writes the rows that it changes, and marks the old ones as deleted. A copy rewrites their files."""
LEFT_OVER = 86_400_000
"""Milliseconds after which maintenance forgets the branch of a run that died."""
SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.target-file-size-bytes": str(128 << 20),
    "write.merge.mode": ON_READ,
    "write.merge.isolation-level": "serializable",
    # Files keep narrow ranges of ids, or every later merge would have to read them all.
    "write.merge.distribution-mode": "range",
    "write.metadata.metrics.default": "truncate(16)",
    # Ids, times and bodies hardly repeat: the default (2 MiB) would look each of a quarter of a million up in vain.
    "write.parquet.dict-size-bytes": str(128 << 10),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class IcebergTarget:
    """Tables of the catalog `outbox`, in its namespace `outbox`."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._began: dict[str, int] = {}
        self._planned: dict[tuple[str, int | None], dict[str, Deletes]] = {}
        """What is known of the files of a table's snapshots."""
        self._place = LocalPlace()

    def prepare(self, *tables: Table, origin: Watermark | None = None) -> None:
        """Make the tables that are missing, each with a first, empty snapshot that later ones can be held against."""
        self._spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        there = [table for table in tables if self._spark.catalog.tableExists(name_of(table))]
        for table in there:
            self._check(table)
        lost = [name_of(table) for table in tables if table not in there]
        if origin and lost and any(self._has_rows(table) for table in there):
            # All are made before one is written: to begin a part anew would hide that history is lost.
            raise TargetError(
                f"{', '.join(lost)} cannot be found, and the other tables have rows: it was dropped, or its metadata "
                "is lost. Nothing was changed: restore it from a backup, or give another --warehouse"
            )
        for table in tables:
            if table not in there:
                self._create(table)
            if self._snapshot(table) is None:
                # What does not come in order by itself, as in a merge, is put in this one.
                self._spark.sql(
                    f"ALTER TABLE {name_of(table)} WRITE LOCALLY ORDERED BY {', '.join(table.order)}"
                )
                self._empty_commit(table, origin.properties() if origin else {})
            # What the run is held against: whatever another run commits from here on is found.
            loaded = self._load(table)
            last = int(loaded.operations().current().lastUpdatedMillis()) / 1000
            refuse_behind(name_of(table), last, time.time())
            self._began[table.name] = loaded.currentSnapshot().snapshotId()

    def watermark(self) -> Watermark | None:
        """Read the watermark in the newest commit that carries one."""
        if not self._spark.catalog.tableExists(name_of(MESSAGE_HISTORY)):
            return None
        table = self._load(MESSAGE_HISTORY)
        snapshot = table.currentSnapshot()
        last = snapshot
        while snapshot is not None:
            if mark := Watermark.of({str(k): str(v) for k, v in dict(snapshot.summary()).items()}):
                return mark
            parent = snapshot.parentId()
            snapshot = None if parent is None else table.snapshot(parent)
        if last is not None and str(dict(last.summary()).get("total-records", "0")) != "0":
            raise TargetError(
                f"{name_of(MESSAGE_HISTORY)} has rows and no watermark: no export wrote them, or "
                "another tool than `outbox etl maintain` expired its snapshots. Give another --warehouse"
            )
        return None

    def identity(self) -> str:
        """The uuid of message_history: it comes with the table, and survives everything but its loss."""
        if not self._spark.catalog.tableExists(name_of(MESSAGE_HISTORY)):
            return ""
        return str(self._load(MESSAGE_HISTORY).uuid().toString())

    def state(self) -> IcebergState:
        """The tables' metadata, read without Iceberg where the files are on this machine."""
        found = []
        for table in CORE:
            if not self._spark.catalog.tableExists(name_of(table)):
                raise TargetError(
                    f"{name_of(table)} is gone: restore it from a backup, or give another --warehouse"
                )
            loaded = self._load(table)
            location = str(loaded.operations().current().metadataFileLocation())
            place: Place = self._place
            if not (is_hadoop(loaded) and local_path(location)):
                place = JavaPlace.of_iceberg(self._spark._jvm, loaded.io())
            found.append(TableState(table, metadata_of(place.read(location)), location, place))
        return IcebergState(found, found[0].place, all(is_of_a_path(each.location) for each in found))

    def read(self, table: Table) -> DataFrame:
        """The rows of a table, as they are now."""
        return self._spark.read.format("iceberg").load(name_of(table))

    def files(self, table: Table, where: Sequence[Between] | None) -> ParquetFiles | None:
        """Find the files that may have rows of one of these ranges, or all; None: only Spark can read them."""
        loaded = self._load(table)
        snapshot = loaded.currentSnapshot()
        number = None if snapshot is None else int(snapshot.snapshotId())
        known = self._planned.setdefault((table.name, number), {})
        return planned_files(self._spark._jvm, loaded, where, known)

    def top(self) -> int:
        """The watermark's, unless a file has a higher one; then from the files' statistics where each has them."""
        if not self._has_rows(MESSAGE_HISTORY):
            return 0
        mark = self.watermark()
        above = self.files(MESSAGE_HISTORY, [Between("id", mark.top + 1, 1 << 62)]) if mark else None
        if mark and above is not None and not above.paths:
            return mark.top
        found = self._top("top")
        return int(self._top("top_of_rows") if found is None else found)

    def _top(self, name: str) -> Any:
        return self._spark.sql(statement("target.sql", name, table=name_of(MESSAGE_HISTORY))).collect()[0][
            "top"
        ]

    def replace(self, table: Table, rows: DataFrame, condition: str, *, in_order: bool = False) -> int:
        """Overwrite the files that the condition names."""
        return self._overwrite(table, rows, condition, {}, in_order=in_order)

    def can_put(self, table: Table) -> bool:
        """Whether its files are made as the job makes them, and lie on this machine."""
        return not iceberg_commit.why_not(self._load(table), table, PROPERTIES)

    def put(self, table: Table, rows: Any, where: Sequence[Between] | None) -> bool:
        """Commit files of Arrow's rows; no rows in the place of none are no commit."""
        if not rows.num_rows and (there := self.files(table, where)) is not None and not there.paths:
            return True
        jvm, found = self._spark._jvm, self._load(table)
        since = self._began[table.name]
        done = iceberg_put.put(jvm, found, table, rows, where=where, properties=PROPERTIES, since=since)
        if done:
            self._began[table.name] = self._snapshot(table).snapshotId()
        return done

    def append(self, messages: Unwritten, ids: Ids, mark: Watermark | None = None) -> int:
        """Overwrite a range of ids that is empty: an append that a second run's rows would stop.

        A run that dies between two commits leaves ids below the highest one out; the next run merges these.
        """
        table, since = self._load(MESSAGE_HISTORY), self._began[MESSAGE_HISTORY.name]
        told = mark.properties() if mark else {}
        written, left = messages.write(table, PROPERTIES, since, told)
        if left == messages.ranges:
            return self._overwrite(MESSAGE_HISTORY, messages.rows(left), ids.hold("id"), told)
        self._began[MESSAGE_HISTORY.name] = self._snapshot(MESSAGE_HISTORY).snapshotId()
        if left:
            rows, condition = messages.rows(left), lies_among("id", left)
            written += self._overwrite(MESSAGE_HISTORY, rows, condition, told)
        return written

    def merge(self, changes: DataFrame, mark: Watermark | None, how: Merging) -> None:
        """Merge with ids as literals, so that only the files that may hold them are read."""
        self._set_mode(COPY if how.whole else ON_READ)
        table = self._load(MESSAGE_HISTORY)
        since = self._base(table)
        made = iceberg_merge.made(self._spark, table, changes, how, properties=PROPERTIES, since=since)
        with made as files, self._branch() as branch:
            if files is not None:
                files.commit(branch, mark.properties() if mark else {})
            elif how.lost is not None:
                self._merge("merge_rebase", changes, branch, mark, how)
            elif how.whole or how.ids.upper - how.ids.lower <= WIDE:
                self._merge("merge", changes, branch, mark, how)
            else:
                self._merge_far(changes, branch, mark, how)

    def _merge_far(self, changes: DataFrame, branch: str, mark: Watermark | None, how: Merging) -> None:
        """Merge changes all over the table, each kind among its own ids.

        Decisions bring all that their messages become: of these, only narrow columns are read. All columns are read
        between the first and the last of the messages that a window adds a publication or a check to, and of those that
        the table does not know, which are young.
        """
        from pyspark.sql import functions as f  # noqa: PLC0415

        there = self.read(MESSAGE_HISTORY).where(how.ids.hold("id")).select(*IDENTITY, "xid", "window_hi")
        same = " AND ".join(f"t.{name} = s.{name}" for name in IDENTITY)
        found = there.alias("t").join(changes.select(*IDENTITY, "xid", "is_message").alias("s"), f.expr(same))
        known = found.groupBy(*(f.col(f"s.{name}") for name in IDENTITY)).agg(
            f.expr(f"coalesce(bool_and({NEWER}), false)").alias("is_newer")
        )
        known = known.persist()
        try:
            kinds = changes.join(known, [*IDENTITY], "left").groupBy("is_newer")
            rows = kinds.agg(f.min("id").alias("low"), f.max("id").alias("high")).collect()
            for row in rows:
                kind, ids = row["is_newer"], Ids(row["low"], row["high"] + 1)
                its = known if kind is None else known.where(f"is_newer = {kind}")
                part = changes.join(its, [*IDENTITY], "left_anti" if kind is None else "left_semi")
                self._merge(
                    "merge" if kind is None else "merge_known",
                    part,
                    branch,
                    mark if row is rows[-1] else None,
                    replace(how, ids=ids),
                    all_newer=kind is True,
                )
            if not rows and mark:
                # An executor was lost, and the next window has by now what its part brought.
                self._empty_commit(MESSAGE_HISTORY, mark.properties(), branch)
        finally:
            known.unpersist()

    def _merge(
        self,
        name: str,
        changes: DataFrame,
        branch: str,
        mark: Watermark | None,
        how: Merging,
        *,
        all_newer: bool = False,
    ) -> None:
        changes.createOrReplaceTempView("outbox_etl_changes")
        columns = merged(how.window_hi, rebase=how.lost is not None, all_newer=all_newer)
        text = statement(
            "target.sql",
            name,
            table=f"{name_of(MESSAGE_HISTORY)}.branch_{branch}",
            low=how.ids.lower,
            high=how.ids.upper,
            sets=", ".join(f"t.`{each}` = {value}" for each, value in columns.items()),
            names=", ".join(f"`{each}`" for each in MESSAGE_HISTORY.names),
            values=", ".join(f"s.`{each}`" for each in MESSAGE_HISTORY.names),
            lost=how.is_lost("t.id"),
            window_hi=how.window_hi,
        )
        with self._properties(SIGNED | (mark.properties() if mark else {})):
            self._spark.sql(text)

    def mark(self, mark: Watermark) -> None:
        """Make the watermark the current snapshot's."""
        with self._branch() as branch:
            self._empty_commit(MESSAGE_HISTORY, mark.properties(), branch)

    @contextlib.contextmanager
    def _branch(self) -> Iterator[str]:
        """A branch of message_history as this run knows it; what is written there becomes the table, all at once.

        Unless somebody else has written the table since: then nothing does, and the run fails. That is looked for
        first: maintenance may have dropped the branch, and the next commit have made it again from a newer table. What
        comes after that look is refused by Iceberg: the move holds for the metadata that it began from.
        """
        table, name = self._load(MESSAGE_HISTORY), f"run_{uuid.uuid4().hex}"
        began = self._base(table)
        # A branch is as old as its last snapshot: the one that this one begins with may be of last year.
        age = max(int(time.time() * 1000) - int(table.snapshot(began).timestampMillis()), 0)
        table.manageSnapshots().createBranch(name, began).setMaxRefAgeMs(name, age + LEFT_OVER).commit()
        try:
            yield name
            table.refresh()
            written = table.snapshot(name)
            if written is None or table.currentSnapshot().snapshotId() != began:
                raise ConcurrentRunError(
                    f"another run, or maintenance, changed {name_of(MESSAGE_HISTORY)} meanwhile. Run again"
                )
            table.manageSnapshots().fastForwardBranch("main", name).removeBranch(name).commit()
        except BaseException:
            with contextlib.suppress(Exception):
                table.refresh()
                table.manageSnapshots().removeBranch(name).commit()
            raise
        self._began[MESSAGE_HISTORY.name] = written.snapshotId()

    def _base(self, table: Any) -> int:
        """The snapshot of message_history that the run began with, or its own last one."""
        return int(self._began.get(MESSAGE_HISTORY.name) or table.currentSnapshot().snapshotId())

    def _overwrite(
        self, table: Table, rows: DataFrame, condition: str, told: Mapping[str, str], *, in_order: bool = True
    ) -> int:
        from pyspark.sql import functions as f  # noqa: PLC0415

        writer = (
            rows.writeTo(name_of(table))
            .option("isolation-level", "serializable")
            .option("validate-from-snapshot-id", str(self._began[table.name]))
            .option("fanout-enabled", "true")
        )
        for name, value in {**SIGNED, **told}.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        if in_order:
            # To shuffle and sort them nevertheless would read the source twice: once to look for the ranges.
            writer = writer.option("distribution-mode", "none").option(
                "use-table-distribution-and-ordering", "false"
            )
        writer.overwrite(f.expr(condition))
        summary = dict(self._snapshot(table).summary())
        self._began[table.name] = self._snapshot(table).snapshotId()
        return int(summary.get("added-records", "0"))

    def _empty_commit(self, table: Table, properties: dict[str, str], branch: str = "main") -> None:
        # By Iceberg itself: a job of Spark that writes no row costs seconds, and a Python worker with it.
        commit = self._load(table).newOverwrite().toBranch(branch)
        for name, value in (SIGNED | properties).items():
            commit.set(name, value)
        commit.commit()

    def _create(self, table: Table) -> None:
        columns = ", ".join(f"`{c.name}` {c.type} COMMENT '{_quoted(c.comment)}'" for c in table.columns)
        day = f"days({table.day})" if table.day_is_time else table.day
        properties = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
        self._spark.sql(
            f"CREATE TABLE {name_of(table)} ({columns}) USING iceberg PARTITIONED BY ({day}) "
            f"COMMENT '{_quoted(table.comment)}' TBLPROPERTIES ({properties})"
        )

    def _set_mode(self, mode: str) -> None:
        """Choose how merges write: a property of the table, which older releases set otherwise. No row changes."""
        table = self._load(MESSAGE_HISTORY)
        if dict(table.properties()).get("write.merge.mode") != mode:
            table.updateProperties().set("write.merge.mode", mode).commit()

    def _check(self, table: Table) -> None:
        found = {field.name: field.dataType.simpleString() for field in self.read(table).schema.fields}
        expected = {column.name: column.type for column in table.columns}
        for name in [*expected, *found]:
            if found.get(name) != expected.get(name):
                raise TargetError(
                    f"{name_of(table)} is another table: its column {name} is {found.get(name, 'missing')}, "
                    f"an export's is {expected.get(name, 'not there')}. Nothing was changed: give another --warehouse"
                )

    @contextlib.contextmanager
    def _properties(self, properties: dict[str, str]) -> Iterator[None]:
        for name, value in properties.items():
            self._spark.conf.set(f"{SNAPSHOT_PROPERTY}{name}", value)
        try:
            yield
        finally:
            for name in properties:
                self._spark.conf.unset(f"{SNAPSHOT_PROPERTY}{name}")

    def _load(self, table: Table) -> Any:
        jvm: Any = self._spark._jvm  # (snapshots' summaries, without a job)
        session = self._spark._jsparkSession
        return jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, name_of(table))

    def _has_rows(self, table: Table) -> bool:
        snapshot = self._snapshot(table)
        return snapshot is not None and str(dict(snapshot.summary()).get("total-records", "0")) != "0"

    def _snapshot(self, table: Table) -> Any:
        return self._load(table).currentSnapshot()


def name_of(table: Table) -> str:
    """A table's full name."""
    return f"{CATALOG}.{NAMESPACE}.{table.name}"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
