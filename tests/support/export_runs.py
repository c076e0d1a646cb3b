"""Runs of the export inside the test's own process, against a warehouse of the test, and the tables they left."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from outbox_etl.export import backfill, export
from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import Settings
from outbox_etl.outcome import ExportResult
from outbox_etl.session import use_catalog
from outbox_etl.source.reader import Ids
from outbox_etl.source.window import Watermark
from outbox_etl.warehouse.files import Between
from outbox_etl.warehouse.opening import open_target
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS, Table
from outbox_etl.warehouse.target import Merging, Target, Unwritten
from outbox_relay.warehouse.jars import etl_jars
from tests.support.small_spark import QUICK

NOWHERE = "postgresql://nobody@localhost:1/none"
Rows = list[tuple[Any, ...]]


class KilledError(Exception):
    """The run was to die here."""


def jars() -> tuple[str, ...]:
    """The jars that are given, else the pinned ones."""
    given = tuple(jar for jar in os.environ.get("OUTBOX_ETL_JARS", "").split(",") if jar)
    return given or etl_jars(lambda done, total: None)


def base_settings(directory: Path) -> Settings:
    """What all sessions of a Spark share."""
    return Settings(
        parse(NOWHERE),
        str(directory),
        master="local[2]",
        driver_memory="1g",
        jars=jars(),
        spark=QUICK,
    )


class Exports:
    """One warehouse, and the runs that fill it."""

    def __init__(
        self, spark: SparkSession, dsn: str, warehouse: Path, options: Mapping[str, Any] | None = None
    ) -> None:
        given: dict[str, Any] = {"format": "iceberg", "partitions": 2, **(options or {})}
        self.settings = Settings(parse(dsn), str(warehouse), **given)
        self.spark = spark.newSession()
        self.spark.conf.set("spark.sql.shuffle.partitions", 2)
        self.said: list[str] = []
        if self.settings.format == "iceberg":
            use_catalog(self.spark, self.settings)

    @property
    def target(self) -> Target:
        """The warehouse, opened anew."""
        return open_target(self.spark, self.settings)

    @property
    def hi(self) -> int:
        """The transaction up to which the warehouse is filled, whatever part of a window lies above it."""
        mark = self.target.watermark()
        return mark.hi if mark else 0

    def run(
        self,
        *,
        die_at: int | None = None,
        after: bool = False,
        meanwhile: Callable[[], None] | None = None,
        at: int = 0,
    ) -> ExportResult:
        """Export; `die_at` counts commits: the run dies before that one, or after it.

        `meanwhile` happens before the commit `at`, when the run has looked for the last time whether it is alone.
        """
        target = self.target
        if die_at is not None:
            target = Watched(target, die_at, kill, after=after)
        elif meanwhile:
            target = Watched(target, at, meanwhile)
        return export(self.spark, self.settings, target, self.said.append)

    def backfill(
        self, *, rebase: bool = False, die_at: int | None = None, after: bool = False, **settings: Any
    ) -> ExportResult:
        """Read everything again; `die_at` as for a run."""
        changed = replace(self.settings, **settings)
        target = self.target if die_at is None else Watched(self.target, die_at, kill, after=after)
        return backfill(self.spark, changed, target, self.said.append, rebase=rebase)

    def rows(self, table: Table, condition: str = "true") -> Rows:
        """A table's rows without `window_hi`, which says how the stream was split; times as microseconds since 1970."""
        columns = [
            f"unix_micros({column.name}) AS {column.name}"
            if column.type == "timestamp"
            else f"`{column.name}`"
            for column in table.columns
            if column.name != "window_hi"
        ]
        return plain(self.target.read(table).where(condition).selectExpr(*columns).collect())

    def tables(self, condition: str = "true") -> dict[str, Rows]:
        """All tables of the export."""
        return {
            table.name: self.rows(table, condition)
            for table in (MESSAGE_HISTORY, TRANSACTION_EVENTS, PUBLICATIONS)
        }


def plain(rows: Any) -> Rows:
    """Rows as tuples that compare, in an order that their content gives."""
    return sorted((tuple(_plain(value) for value in row) for row in rows), key=repr)


def _plain(value: Any) -> Any:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return tuple(sorted(value.items()))
    return tuple(value) if isinstance(value, list) else value


def kill() -> None:
    """End the run, as a kill of the driver would."""
    raise KilledError


class Watched:
    """A target at whose n-th commit something happens, before it or after it, while no other commit does."""

    def __init__(self, target: Target, at: int, happens: Callable[[], None], *, after: bool = False) -> None:
        self._target, self._at, self._happens, self._after = target, at, happens, after
        self._count = itertools.count()
        self._one, self._died = threading.Lock(), False
        self.can_put, self.state = target.can_put, target.state
        self.prepare, self.read, self.files, self.top, self.watermark, self.identity = (
            target.prepare,
            target.read,
            target.files,
            target.top,
            target.watermark,
            target.identity,
        )

    def replace(self, table: Table, rows: DataFrame, condition: str, *, in_order: bool = False) -> int:
        return int(self._watch(lambda: self._target.replace(table, rows, condition, in_order=in_order)))

    def put(self, table: Table, rows: Any, where: Sequence[Between] | None) -> bool:
        return bool(self._watch(lambda: self._target.put(table, rows, where)))

    def append(self, messages: Unwritten, ids: Ids, mark: Watermark | None = None) -> int:
        return int(self._watch(lambda: self._target.append(messages, ids, mark)))

    def merge(self, changes: DataFrame, mark: Watermark | None, how: Merging) -> None:
        self._watch(lambda: self._target.merge(changes, mark, how))

    def mark(self, mark: Watermark) -> None:
        self._watch(lambda: self._target.mark(mark))

    def _watch(self, commit: Callable[[], Any]) -> Any:
        with self._one:  # a run commits from several threads, and where it dies, all of them do
            if self._died:
                raise KilledError
            now = next(self._count) == self._at
            if now and not self._after:
                self._happen()
            answer = commit()
            if now and self._after:
                self._happen()
            return answer

    def _happen(self) -> None:
        try:
            self._happens()
        except KilledError:
            self._died = True
            raise
