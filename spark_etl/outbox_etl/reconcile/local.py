"""The rows of a window as files on the driver's machine: read as Arrow, hashed and compared by DuckDB.

It is a faster way to what Spark finds in `sources`, `against_warehouse`, `against_kafka` and `order`, and reads in the
same order. What it read is what Spark compares row by row: PostgreSQL and Kafka are read once. Both sides of a
comparison are hashed by one engine. Whatever is not certain while PostgreSQL and the warehouse are read leaves
everything to Spark, which reads both again; what DuckDB cannot do afterwards, Spark does with the rows that were read.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from outbox_etl.arrow import task
from outbox_etl.arrow.here import shown
from outbox_etl.errors import SourceError
from outbox_etl.reconcile import slim
from outbox_etl.reconcile.kafka import SCHEMA
from outbox_etl.reconcile.sources import PUBLICATION_COLUMNS, SQL, SourceRows
from outbox_etl.source.reader import SQL as SOURCE_SQL
from outbox_etl.source.reader import Ids, Source, lies_among, query
from outbox_etl.statements import statement
from outbox_etl.warehouse.duck import NOT_PLAIN, Duck, UnreadableError, runs_here
from outbox_etl.warehouse.files import Between
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.reconcile.kafka import Broker, Range
    from outbox_etl.source.window import Window
    from outbox_etl.warehouse.target import Target

    Say = Callable[[str], None]

PACKAGES = ("adbc_driver_postgresql", "duckdb", "pyarrow")
MESSAGES = (
    "id bigint, message_id string, xid bigint, topic string, position bigint, state string, unit string, "
)
MESSAGES += "digest string, hash bigint"
SHOWN_PUBLICATION = "status string, published_at timestamp, partition int, offset bigint"
PUBLISHED = (
    "position bigint, partition int, offset bigint, published_at timestamp, xid bigint, epoch bigint, "
)
PUBLISHED += "batch bigint, lo bigint"
EVENTS = "id bigint, message_id string, hash bigint"
Rows = list[dict[str, Any]]
T = TypeVar("T")


class UnusedError(Exception):
    """Spark has to do it; the text gives the reason, and shows no value."""


class LocalRows:
    """The rows of one window. Made by `local_rows`; `close` removes them."""

    def __init__(self, spark: SparkSession, settings: Settings, say: Say) -> None:
        self._spark, self._settings, self._say = spark, settings, say
        # (each may have a connection)
        self._threads = min(int(spark.sparkContext.defaultParallelism), os.cpu_count() or 1)
        self._folder = tempfile.TemporaryDirectory(
            prefix="outbox-etl-", dir=_disk(spark), ignore_cleanup_errors=True
        )
        self._works = True
        try:
            if NOT_PLAIN & set(self._folder.name):
                raise UnusedError("the path of the temporary folder has one of the characters * ? [ {")
            self._duck = Duck(self._threads, self._folder.name)
        except BaseException:
            self._folder.cleanup()
            raise

    def close(self) -> None:
        """Give back memory and disk; a second time does nothing."""
        try:
            self._duck.close()
        finally:
            self._folder.cleanup()

    def read(
        self, source: Source, target: Target, window: Window, ranges: Sequence[Ids], held: Sequence[Ids]
    ) -> tuple[SourceRows, SourceRows, tuple[int, int]]:
        """Read PostgreSQL and then the warehouse; answer both, and how many messages there are, and their sum.

        Args:
            source: PostgreSQL.
            target: the warehouse.
            window: the window.
            ranges: of ids, each of which a connection reads.
            held: the ids that PostgreSQL has.

        Raises:
            UnusedError: Spark has to read and compare.
            UnreadableError: the same.
        """
        self._inside = f"xid >= {window.lo} AND xid < {window.hi}"
        self._hi = window.hi
        ours = self._postgres(source, window, ranges)
        [total] = self._ask("count", inside=self._inside)
        return ours, self._warehouse(target, window, held), (total["count"], total["sum"] or 0)

    def _postgres(self, source: Source, window: Window, ranges: Sequence[Ids]) -> SourceRows:
        inside = statement(SOURCE_SQL, "in_window", lo=window.lo, hi=window.hi)
        text = f"{statement(SQL, 'publications')}\nWHERE {inside}"
        publications = self._copy(source, "publications", text, ranges, statement(slim.SQL, "publications"))
        [low] = self._ask("span", column="position", rows="p_publications")
        condition = statement(SQL, "messages", in_window=inside, **low)
        text = f"{statement(SOURCE_SQL, 'message_columns')}\n{condition}"
        messages = self._copy(source, "messages", text, ranges, slim.messages("batches"))
        text = query("event", window)
        events = self._copy(source, "events", text, ranges, slim.events("batches"))
        return SourceRows(
            self._frame(messages, MESSAGES), self._frame(publications, PUBLISHED), self._frame(events, EVENTS)
        )

    def _copy(
        self, source: Source, name: str, text: str, ranges: Sequence[Ids], text_of_rows: str
    ) -> list[str]:
        """Have the rows of a statement that returns an `id` under p_name; answer the files."""

        def copy(number: int) -> tuple[str, int]:
            within = ranges[number].hold("q.id")
            path = f"{self._folder.name}/p_{name}_{number}.parquet"
            asked = statement(SQL, f"copied_{name}", rows=text, within=within)
            with task.copied(self._settings.source.conninfo, source.begin(), asked) as batches:
                refused: list[Exception] = []
                try:
                    return path, self._duck.save(text_of_rows, path, slim.reader(batches, refused))
                except Exception as error:
                    if refused:  # (DuckDB wraps what a reader raises)
                        raise refused[0] from error
                    raise

        if not ranges:
            raise UnusedError("PostgreSQL has no partition")
        with ThreadPoolExecutor(self._threads) as threads:
            made = list(threads.map(copy, range(len(ranges))))
        self._own(f"p_{name}", [path for path, _ in made], sum(rows for _, rows in made))
        return [path for path, _ in made]

    def _warehouse(self, target: Target, window: Window, held: Sequence[Ids]) -> SourceRows:
        xids = Between("xid", window.lo, window.hi)
        self._view(target, "publications", PUBLICATIONS, [xids])
        self._view(target, "events", TRANSACTION_EVENTS, [xids])
        [place] = self._ask("span", column="position", rows=f"publications WHERE {self._inside}")
        [ids] = self._ask("span", column="id", rows=f"p_messages WHERE {self._inside}")
        self._ids = ids
        near = [
            xids,
            Between("position", place["low"], place["high"] + 1),
            Between("id", ids["low"], ids["high"] + 1),
        ]
        seen = self._view(target, "history", MESSAGE_HISTORY, near)
        self._save("lost", statement(slim.SQL, "lost", rows=self._with_lost(target, seen)))
        among = lies_among("position", held)
        text = statement(slim.SQL, "publications_of_window", inside=self._inside, held=among)
        publications = self._save("h_publications", text)
        text = statement(slim.SQL, "messages_of_window", inside=self._inside, **place)
        more = ', status, published_at, partition, "offset"'
        messages = self._save("h_messages", slim.messages(text, more))
        events = self._save("h_events", slim.events(f"events WHERE {self._inside}"))
        return SourceRows(
            self._frame(messages, f"{MESSAGES}, {SHOWN_PUBLICATION}"),
            self._frame(publications, f"{PUBLISHED}, of_lost boolean"),
            self._frame(events, EVENTS),
        )

    def _view(self, target: Target, name: str, table: Table, where: Sequence[Between] | None) -> set[str]:
        files = target.files(table, where)
        if files is None:
            raise UnusedError("the warehouse is not on this machine, or has too many files")
        self._duck.view(name, table, files)
        return set(files.paths)

    def _with_lost(self, target: Target, seen: set[str]) -> str:
        """The view that has all messages that a fail-over lost: there may be some outside of the window's files."""
        files = target.files(MESSAGE_HISTORY, None)
        if files is not None and seen >= set(files.paths):
            return "history"
        if target.read(MESSAGE_HISTORY).where("status = 'LOST'").isEmpty():
            return "history"
        self._view(target, "all_history", MESSAGE_HISTORY, None)
        return "all_history"

    def suspects(self) -> tuple[DataFrame, Mapping[str, int]] | None:
        """What may differ between PostgreSQL and the warehouse (`what`, `key`), and how many; None: ask Spark."""
        published = ", ".join(f'"{name}"' for name in PUBLICATION_COLUMNS)
        values = {"inside": self._inside, "hi": self._hi, "published": published, **self._ids}

        def find() -> tuple[DataFrame, Mapping[str, int]]:
            path = self._save("suspects", statement(slim.SQL, "suspects", **values))
            counts = self._ask("numbers", column="what", rows="suspects")
            return self._frame(path, "what string, key bigint"), {row["what"]: row["count"] for row in counts}

        return self._try(find)

    def is_verified(self, messages: str, publications: str) -> bool:
        """Whether these conditions hold for no row of the warehouse; False: ask Spark."""
        found = self._try(lambda: self._ask("unverified", messages=messages, publications=publications))
        return found is not None and found[0]["count"] == 0

    def bounds(self, *, is_mirror: bool) -> Rows | None:
        """Join the places; answer the bounds of their offsets by topic and partition; None: ask Spark."""

        def find() -> Rows:
            texts = [statement(slim.SQL, "places", side="p", also="")]
            if not is_mirror:
                texts.append(
                    statement(slim.SQL, "places", side="h", also=" AND p.of_lost = (m.status = 'LOST')")
                )
            self._save("places", " UNION ALL ".join(texts))
            self._mirror = is_mirror
            return self._ask("bounds")

        return self._try(find)

    def records(self, broker: Broker, to_read: Sequence[Range]) -> tuple[DataFrame, int]:
        """Read Kafka into files; what goes wrong is raised, as by Spark's own reading."""
        import pyarrow.parquet as pq  # noqa: PLC0415

        made = broker.save(self._spark, to_read, self._folder.name)
        paths, rows = [path for path, _ in made], sum(rows for _, rows in made)
        why = None
        try:
            is_whole = rows == sum(pq.read_metadata(path).num_rows for path in paths)
        except Exception as error:  # noqa: BLE001  (whatever it is, the disk has lost what was written)
            is_whole, why = False, error
        if not is_whole:
            raise SourceError(
                f"a file with Kafka's records cannot be read again ({self._folder.name}): check this disk, then verify "
                "again"
            ) from why
        self._try(lambda: self._own("records", paths, rows))
        return self._frame(paths, SCHEMA), rows

    def kafka_suspects(self, limits: Sequence[tuple[str, int, int, bool]]) -> tuple[DataFrame, Rows] | None:
        """The messages that may be wrong in Kafka (`message_id`, `known`), counted by `known`; None: ask Spark."""
        import pyarrow as pa  # noqa: PLC0415

        types = (pa.string(), pa.int32(), pa.int64(), pa.bool_())
        names = ("topic", "partition", "low", "compacted")

        def find() -> tuple[DataFrame, Rows]:
            columns = zip(*limits, strict=True) if limits else ([],) * len(names)
            arrays = [pa.array(each, kind) for each, kind in zip(columns, types, strict=True)]
            self._duck.give("limits", pa.table(arrays, names))
            self._save("judged", statement(slim.SQL, "judged"))
            self._save("hashed", statement(slim.SQL, "hashed"))
            whole = "= 2" if self._mirror else "> 1"
            self._save("kafka_suspects", statement(slim.SQL, "kafka_suspects", whole=whole))
            path = self._save("suspected_messages", statement(slim.SQL, "suspected_messages"))
            return self._frame(path, "message_id string, known boolean"), self._ask(
                "numbers", column="known", rows="suspected_messages"
            )

        return self._try(find)

    def totals(self) -> Rows | None:
        """Counts and sums by topic and partition, after `kafka_suspects`; None: ask Spark."""
        return self._try(lambda: self._ask("totals", warehouse="p" if self._mirror else "h"))

    def inversions(self, size: int) -> Iterator[Rows] | None:
        """What `order.inversions` finds in all doubtful units, so many rows at a time; None: ask Spark."""

        def find() -> str:
            self._save("units", statement(slim.SQL, "units"))
            [path] = self._save("inversions", statement(slim.SQL, "inversions"))
            return path

        path = self._try(find)
        return None if path is None else _chunks(path, size)

    def recorded(self, positions: Sequence[int]) -> Rows | None:
        """The publications of some positions, the first of each first; None: ask Spark."""
        import pyarrow as pa  # noqa: PLC0415

        def find() -> Rows:
            self._duck.give("asked", pa.table([pa.array(positions, pa.int64())], ["position"]))
            return self._ask("recorded")

        return self._try(find)

    def _try(self, find: Callable[[], T]) -> T | None:
        """What is found; None, if DuckDB cannot, from then on."""
        if not self._works:
            return None
        try:
            return find()
        except Exception as error:  # noqa: BLE001  (Spark has the same rows, and finds out what is wrong)
            self._works = False
            self._say(f"rows are compared by Spark: {reason(error, self._settings)}")
            return None

    def _ask(self, name: str, **values: int | str) -> Rows:
        return list(self._duck.ask(statement(slim.SQL, name, **values)).to_pylist())

    def _save(self, name: str, text: str) -> list[str]:
        path = f"{self._folder.name}/{name}.parquet"
        self._own(name, [path], self._duck.save(text, path))
        return [path]

    def _own(self, name: str, paths: Sequence[str], rows: int) -> None:
        self._duck.own(name, paths)
        [found] = self._ask("number", rows=name)
        if found["count"] != rows:
            raise UnusedError("a file does not have the rows that were written")

    def _frame(self, paths: Sequence[str], schema: str) -> DataFrame:
        reader = self._spark.read.schema(schema)
        # (whatever the session is told: a file that is gone has no rows, and would prove nothing)
        return (
            reader.option("ignoreMissingFiles", "false").option("ignoreCorruptFiles", "false").parquet(*paths)
        )


def _chunks(path: str, size: int) -> Iterator[Rows]:
    import pyarrow.parquet as pq  # noqa: PLC0415

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(size):
            yield batch.to_pylist()


def local_rows(spark: SparkSession, settings: Settings, say: Say) -> LocalRows | None:
    """A folder for rows, if tasks run on this machine and all packages are there; None: everything is Spark's."""
    if not (runs_here(spark) and all(importlib.util.find_spec(name) is not None for name in PACKAGES)):
        return None
    try:
        return LocalRows(spark, settings, say)
    except Exception as error:  # noqa: BLE001  (Spark needs neither DuckDB nor this folder)
        say(f"rows are read and compared by Spark: {reason(error, settings)}")
        return None


def reason(error: Exception, settings: Settings) -> str:
    """Why Spark reads and compares: our own text, or the name of the error only, whose text may show a row."""
    known = isinstance(error, (UnusedError, UnreadableError, task.UnsureError))
    text = str(error) if known else type(error).__name__
    return shown(text, settings)


def _disk(spark: SparkSession) -> str | None:
    """Where Spark keeps what it shuffles, if that was chosen; None: where the machine has such files."""
    chosen = os.environ.get("SPARK_LOCAL_DIRS") or spark.sparkContext.getConf().get("spark.local.dir") or ""
    first = chosen.partition(",")[0].strip()
    return first if first and Path(first).is_dir() else None
