"""A merge of few changes, made by DuckDB and committed without a job of Spark, as Spark's merge on read would be.

What a process leaves that dies, between any two lines:

| it dies | what is there | then |
|---|---|---|
| while it reads or writes | files that no table names | the next run begins at the watermark; `maintain` deletes them |
| after the commit on the run's branch | the branch | `main` and its watermark are as before |

A commit that is refused leaves no file, unless it may have been done.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_etl.source.reader import Ids
from outbox_etl.statements import statement
from outbox_etl.warehouse import iceberg_commit, iceberg_put
from outbox_etl.warehouse.changes import ASKED_OF_ROW, IDENTITY, NEWER, merged
from outbox_etl.warehouse.duck import Duck, UnreadableError, listed, opened
from outbox_etl.warehouse.files import Between, ParquetFiles, local_path, remove
from outbox_etl.warehouse.iceberg_files import expression, planned_files
from outbox_etl.warehouse.iceberg_state import SIGNED
from outbox_etl.warehouse.tables import EARLIEST, LATEST, MESSAGE_HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.warehouse.target import Merging

SQL = "merge.sql"
MOST_CHANGES, MOST_BYTES = 50_000, 64 << 20
"""Changes, and bytes of theirs, that the driver takes into its memory."""
MOST_WRITTEN = 64 << 20
"""Bytes of rows that the driver takes into its memory to write them again."""
MOST_CHECKED = 4 << 30
"""Bytes of files that are read from end to end to check them: a few seconds. Spark reads narrow columns of them."""
MOST_MARKED = 500
"""Files of rows that one merge marks rows in: each gets a file of marks."""
WHAT = "older messages are merged"
FILE_PATH, POS = 2147483546, 2147483545
"""Iceberg's ids of the columns of a file of marks (position deletes of format 2)."""


@dataclass(slots=True)
class Made:
    """Files of a merge that are written, and not yet committed."""

    jvm: Any
    table: Any
    ids: Ids
    since: int
    """The snapshot that was merged into."""
    rows: list[Any] = field(default_factory=list)
    marks: list[Any] = field(default_factory=list)
    replaced: list[Any] = field(default_factory=list)
    """Files of marks in whose place the new ones come."""
    marked: list[str] = field(default_factory=list)
    """Names of the files of rows that have marks now."""
    paths: list[str] = field(default_factory=list)
    is_committed: bool = False

    def commit(self, branch: str, properties: Mapping[str, str]) -> None:
        """Commit to a branch, with the calls of Spark's writer (`SparkPositionDeltaWrite` of Iceberg 1.12) for a MERGE
        at the isolation level `serializable`.

        Raises:
            Exception: Java's: somebody wrote these rows, or removed their files, since the snapshot.
        """
        ours = [Between("id", self.ids.lower, self.ids.upper)]
        update = self.table.newRowDelta().toBranch(branch)
        for file in self.rows:
            update = update.addRows(file)
        for file in self.marks:
            update = update.addDeletes(file)
        for file in self.replaced:
            update = update.removeDeletes(file)
        names = self.jvm.java.util.ArrayList()
        for name in self.marked:
            names.add(name)
        update = update.conflictDetectionFilter(
            expression(self.jvm.org.apache.iceberg.expressions.Expressions, ours)
        )
        update = update.validateDataFilesExist(names).validateFromSnapshot(self.since).validateDeletedFiles()
        update = update.validateNoConflictingDeleteFiles().validateNoConflictingDataFiles()
        for name, value in (SIGNED | dict(properties)).items():
            update = update.set(name, value)
        self.is_committed = True  # (as long as it may be)
        try:
            update.commit()
        except Exception as error:
            self.is_committed = not iceberg_commit.is_refused(error)
            raise


@contextlib.contextmanager
def made(
    spark: SparkSession,
    table: Any,
    changes: DataFrame,
    how: Merging,
    *,
    properties: Mapping[str, str],
    since: int,
) -> Iterator[Made | None]:
    """The files of a merge, to be committed within; they are removed if that raises.

    Args:
        spark: the session.
        table: Iceberg's.
        changes: what is merged.
        how: how it is merged.
        properties: those that the job gives its tables.
        since: the snapshot that the run began with.

    Returns:
        None: Spark has to merge.
    """
    is_few = 0 < how.rows <= MOST_CHANGES and how.size <= MOST_BYTES
    duck = opened(spark, how.say, WHAT) if is_few and not how.whole and how.lost is None else None
    if duck is None:
        yield None
        return
    merge, found = _Merge(spark._jvm, table, since, duck), None
    try:
        try:
            with contextlib.closing(duck):
                found = merge.make(changes, how, properties=properties, settings=spark.conf.getAll)
        except Exception as error:  # noqa: BLE001  (DuckDB's, Arrow's, Java's, the disk's: Spark reports what is wrong)
            found = None  # (DuckDB may fail when it is closed)
            remove(merge.paths)
            how.say(
                f"{WHAT} by Spark: {error if isinstance(error, UnreadableError) else type(error).__name__}"
            )
        yield found
    except BaseException:
        if found is None or not found.is_committed:
            remove(merge.paths)
        raise


class _Merge:
    """One merge."""

    def __init__(self, jvm: Any, table: Any, since: int, duck: Duck) -> None:
        self._jvm, self._table, self._duck, self._since = jvm, table, duck, since
        self.paths: list[str] = []
        """The files that were written."""

    def make(
        self,
        changes: DataFrame,
        how: Merging,
        *,
        properties: Mapping[str, str],
        settings: Collection[str],
    ) -> Made:
        """Find the rows, and write what becomes of them.

        Raises:
            UnreadableError: it is not certain that the outcome is what Spark's would be.
            Exception: of DuckDB, Arrow, Java or the disk.
        """
        import pyarrow.compute as pc  # noqa: PLC0415

        snapshot = self._table.currentSnapshot()
        if snapshot is None or snapshot.snapshotId() != self._since:
            raise UnreadableError("somebody else has written the table")
        if why := iceberg_commit.why_not(self._table, MESSAGE_HISTORY, properties):
            raise UnreadableError(why)
        if any(name.startswith("spark.sql.iceberg.") for name in settings):
            raise UnreadableError("a setting of Iceberg's writer is given")
        rows = _numbered(changes.toArrow())
        if not rows.num_rows:
            return Made(self._jvm, self._table, how.ids, self._since)
        low, high = pc.min_max(rows["id"]).as_py().values()
        ids = Ids(low, high + 1)
        files = planned_files(self._jvm, self._table, [Between("id", ids.lower, ids.upper)], {})
        if files is None:
            raise UnreadableError("the table has too many files, or some that are not the job's")
        self._duck.give("changes", rows)
        return self._written(Made(self._jvm, self._table, ids, self._since, paths=self.paths), files, how)

    def _written(self, found: Made, files: ParquetFiles, how: Merging) -> Made:
        paths = [*files.whole, *files.marked.values()]
        rows = self._rows(files, paths, found.ids, how)
        marks = self._duck.ask(statement(SQL, "marks"))
        places = marks["place"].unique().to_pylist()
        if len(places) > MOST_MARKED:
            raise UnreadableError("the changes are of too many files")
        tasks = self._tasks(found.ids, {paths[place] for place in places})
        found.rows = iceberg_put.write_days(self._jvm, self._table, MESSAGE_HISTORY, rows, self.paths)
        for place in places:
            task = tasks[paths[place]]
            name = str(task.file().location())
            found.marks.append(self._write_marks(task, name, _positions(marks, place)))
            found.replaced += [each for each in task.deletes() if self._is_of_one_file(each)]
            found.marked.append(name)
        return found

    def _rows(self, files: ParquetFiles, paths: list[str], ids: Ids, how: Merging) -> Any:
        """What becomes of the rows, and the new ones, with the columns of the table's files."""
        import pyarrow as pa  # noqa: PLC0415

        if sum(Path(path).stat().st_size for path in files.paths) > MOST_CHECKED:
            raise UnreadableError("the files between the first and the last of the messages are too large")
        self._duck.need_sound(files)
        span = {"low": ids.lower, "high": ids.upper}
        if files.marked:
            self._duck.mark("deleted", files, len(files.whole))
        else:
            self._do("nothing_deleted")
        columns = ", ".join(f't."{name}"' for name in ASKED_OF_ROW)
        if paths:
            self._do("found", newer=NEWER, columns=columns, paths=listed(paths), **span)
        else:
            self._do("nothing_found", columns=columns)
        self._do("leave_deleted")
        parts = [
            self._ask("newer", sets=_sets(merged(how.window_hi, all_newer=True))),
            self._ask("unknown", sets=_sets({name: f"s.{name}" for name in MESSAGE_HISTORY.names})),
        ]
        if places := self._ask("places_of_others")["place"].to_pylist():
            of = ", ".join(f"({here}, {place})" for here, place in enumerate(places))
            theirs = listed(paths[place] for place in places)
            sets = _sets(merged(how.window_hi))
            text = statement(SQL, "others", sets=sets, paths=theirs, places=of, **span)
            parts.append(self._duck.ask_for_at_most(text, MOST_WRITTEN))
        [counted] = self._ask("count").to_pylist()
        if sum(part.num_rows for part in parts) != counted["number"]:
            raise UnreadableError("not every row was read again")
        columns_of = iceberg_put.columns_of(self._table)
        rows = pa.concat_tables([part.select(columns_of.names).cast(columns_of) for part in parts])
        _need_ordinary_times(rows)
        return rows

    def _do(self, name: str, **values: int | str) -> None:
        self._duck.do(statement(SQL, name, **values))

    def _ask(self, name: str, **values: int | str) -> Any:
        return self._duck.ask(statement(SQL, name, **values))

    def _tasks(self, ids: Ids, paths: set[str]) -> dict[str, Any]:
        """Iceberg's knowledge of these files of rows, and of the marks of each."""
        expressions = self._jvm.org.apache.iceberg.expressions.Expressions
        planned = (
            self._table.newScan()
            .filter(expression(expressions, [Between("id", ids.lower, ids.upper)]))
            .planFiles()
        )
        found = {}
        try:
            tasks = planned.iterator()
            while tasks.hasNext():
                task = tasks.next()
                path = local_path(str(task.file().location()))
                if path in paths:
                    found[path] = task
        finally:
            planned.close()
        number = self._table.spec().specId()
        if any(task.file().specId() != number for task in found.values()):
            raise UnreadableError("a file is partitioned in another way")
        return found

    def _is_of_one_file(self, deletes: Any) -> bool:
        return bool(self._jvm.org.apache.iceberg.util.ContentFileUtil.isFileScoped(deletes))

    def _write_marks(self, task: Any, name: str, positions: Any) -> Any:
        """The file of marks of one file of rows: all that it has, as Spark writes them."""
        import pyarrow as pa  # noqa: PLC0415

        table, iceberg = self._table, self._jvm.org.apache.iceberg
        location = f"{name.rpartition('/')[0]}/{uuid.uuid4().hex}-deletes.parquet"
        rows = pa.Table.from_arrays([pa.repeat(pa.scalar(name), len(positions)), positions], schema=_marks())
        size = iceberg_put.write(rows, local_path(location), self.paths)
        config = iceberg.MetricsConfig.forPositionDelete()
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(table.io().newInputFile(location), config)
        builder = iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofPositionDeletes().withPath(location)
        builder = builder.withFormat("PARQUET").withFileSizeInBytes(size).withMetrics(metrics)
        file = builder.withPartition(task.file().partition()).build()
        if not self._is_of_one_file(file):
            raise UnreadableError("the name of a file is too long for the measures of its marks")
        return file


def _numbered(rows: Any) -> Any:
    """The changes, each with its number.

    Raises:
        UnreadableError: two are of one message, which Spark's MERGE refuses.
    """
    import pyarrow as pa  # noqa: PLC0415

    if rows.select([*IDENTITY]).group_by([*IDENTITY]).aggregate([]).num_rows != rows.num_rows:
        raise UnreadableError("a message has two changes")
    return rows.append_column("number", pa.array(range(rows.num_rows), pa.int64()))


def _sets(columns: Mapping[str, str]) -> str:
    """What becomes of all columns; what is not given stays."""
    return ", ".join(f'{columns.get(name, f"t.{name}")} AS "{name}"' for name in MESSAGE_HISTORY.names)


def _positions(marks: Any, place: int) -> Any:
    import pyarrow.compute as pc  # noqa: PLC0415

    return marks.filter(pc.equal(marks["place"], place))["pos"].combine_chunks()


def _marks() -> Any:
    import pyarrow as pa  # noqa: PLC0415

    columns = (("file_path", pa.string(), FILE_PATH), ("pos", pa.int64(), POS))
    return pa.schema(
        pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for name, kind, number in columns
    )


def _need_ordinary_times(rows: Any) -> None:
    """Leave times outside the calendar that all readers share, and messages without a day, to Spark.

    Raises:
        UnreadableError: there is one.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if rows[MESSAGE_HISTORY.day].null_count:
        raise UnreadableError("a message was born at no time")
    for column in rows.columns:
        if pa.types.is_timestamp(column.type):
            least, most = pc.min_max(column.cast(pa.int64())).as_py().values()
            if least is not None and (least < EARLIEST or most > LATEST):
                raise UnreadableError("a time is outside the years 1900 to 9999")
