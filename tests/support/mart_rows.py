"""A warehouse whose rows a test writes itself, with the marts made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import Settings
from outbox_etl.session import start, use_catalog
from outbox_etl.source.window import Cluster, Watermark
from outbox_etl.warehouse.duck import Duck
from outbox_etl.warehouse.manifest import FOLDER
from outbox_etl.warehouse.marts import Refresh
from outbox_etl.warehouse.opening import open_target
from outbox_etl.warehouse.tables import CORE, MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS, Table
from outbox_etl.warehouse.target import Target
from tests.support.export_runs import jars
from tests.support.small_spark import QUICK

HERE = Cluster("7", 1)
DAY = date(2026, 3, 1)
NEXT = date(2026, 3, 2)
QUICKEST = {**QUICK, "spark.sql.shuffle.partitions": "1"}


def at(day: date, seconds: float = 0.0) -> datetime:
    """A time of a day: so many seconds after midnight, UTC."""
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(seconds=seconds)


def settings(
    warehouse: Path, dsn: str = "postgresql://nobody@localhost:1/none", form: str = "parquet"
) -> Settings:
    """A small Spark; Iceberg's commits would take most of the time, and say nothing of marts."""
    return Settings(
        parse(dsn),
        str(warehouse),
        format=form,
        master="local[2]",
        driver_memory="1g",
        partitions=1,
        jars=jars(),
        spark=QUICKEST,
    )


def start_spark(directory: Path) -> SparkSession:
    """One Spark for many tests."""
    return start(settings(directory, form="iceberg"))


@dataclass
class Warehouse:
    """The three tables of an export, empty."""

    session: SparkSession
    path: Path
    dsn: str = "postgresql://nobody@localhost:1/none"
    said: list[str] = field(default_factory=list)
    by_duck: bool = True
    """Whether DuckDB counts, or Spark."""
    form: str = "parquet"

    def __post_init__(self) -> None:
        self.settings = settings(self.path, self.dsn, self.form)
        self.spark = self.session.newSession()  # (views of its own)
        if self.form == "iceberg":
            use_catalog(self.spark, self.settings)

    @property
    def target(self) -> Target:
        """The warehouse."""
        return open_target(self.spark, self.settings)

    def fill(
        self,
        window_hi: int,
        *,
        messages: Iterable[dict[str, Any]] = (),
        events: Iterable[dict[str, Any]] = (),
        publications: Iterable[dict[str, Any]] = (),
    ) -> None:
        """Write a window's rows; columns that are not given are null, or what makes no difference."""
        target = self.target
        target.prepare(*CORE, origin=Watermark(0, 0, HERE))
        for table, rows in (
            (TRANSACTION_EVENTS, events),
            (PUBLICATIONS, publications),
            (MESSAGE_HISTORY, messages),
        ):
            whole = [{"xid": window_hi - 1, "window_hi": window_hi, **row} for row in rows]
            target.replace(table, self._frame(table, whole), f"window_hi = {window_hi}")
        target.mark(Watermark(window_hi, 0, HERE))

    def make(self, window_hi: int, *, cluster: Cluster = HERE, everything: bool = False) -> list[date]:
        """Make the marts up to a window; answer the days."""
        from outbox_etl.warehouse.mart_tables import DAYS, MARTS

        target = self.target
        target.prepare(*MARTS, DAYS)
        mark = Watermark(window_hi, 0, cluster)
        with ExitStack() as last:
            duck = last.enter_context(closing(Duck(2))) if self.by_duck else None
            made = Refresh(self.spark, target, mark, self.said.append, duck=duck).run(everything=everything)
        assert not made.faults
        return list(made.days)

    def rows(self, table: Table) -> list[dict[str, Any]]:
        """A mart's rows, in order."""
        found = self.target.read(table).orderBy(*table.order).collect()
        return [row.asDict() for row in found]

    def commits(self) -> int:
        """How often the warehouse was written."""
        return len(list((self.path / FOLDER).glob("*.json")))

    def _frame(self, table: Table, rows: Sequence[dict[str, Any]]) -> Any:
        columns = [tuple(row.get(name) for name in table.names) for row in rows]
        return self.spark.createDataFrame(columns, table.schema)


def message(number: int, topic: str, born: datetime, **columns: Any) -> dict[str, Any]:
    """A message; published where `published_at` is given."""
    state = columns.get("state", "COMMITTED")
    status = "PUBLISHED" if columns.get("published_at") else state
    made = {"id": number, "message_id": f"m{number}", "topic": topic, "born_at": born, "checks": 0, "lane": 0}
    return {**made, "state": state, "status": status, "position": number, **columns}


def event(number: int, when: datetime, **columns: Any) -> dict[str, Any]:
    """Something that happened to message `number`."""
    made = {
        "id": number,
        "message_id": f"m{number}",
        "happened_at": when,
        "kind": "transition",
        "actor": "shop",
    }
    return {**made, **columns}


def publication(number: int, when: datetime, offset: int, **columns: Any) -> dict[str, Any]:
    """A publication of message `number`."""
    made = {
        "position": number,
        "partition": 0,
        "offset": offset,
        "published_at": when,
        "epoch": 1,
        "batch": 1,
    }
    return {**made, **columns}
