"""The new messages of a slice, to be read by Spark or, where that is known to give the same rows, as Arrow.

As Arrow: under `local[*]`, where tasks have the driver's packages and files, into an Iceberg table whose files are
made as the job makes them. Everything else is Spark's, and so is each range that a task refuses.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_etl.arrow import task
from outbox_etl.arrow.here import is_here, shown
from outbox_etl.source.reader import LEAST_RANGE, Ids, Source
from outbox_etl.source.window import Window
from outbox_etl.warehouse import iceberg_commit as commit
from outbox_etl.warehouse import rows
from outbox_etl.warehouse.changes import published
from outbox_etl.warehouse.files import Between, local_path
from outbox_etl.warehouse.tables import MESSAGE_HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from outbox_etl.options.settings import Settings


class NewMessages:
    """New messages of a range of ids, with their publications and checks."""

    def __init__(
        self, source: Source, window: Window, ids: Ids, settings: Settings, say: Callable[[str], None]
    ) -> None:
        self._source, self._window, self._ids = source, window, ids
        self._settings, self._say = settings, say
        self.ranges: Sequence[Ids] = source.new_ranges(window, ids)
        """What each task reads."""

    def rows(self, ranges: Sequence[Ids]) -> DataFrame:
        """The messages of these ranges as Spark's rows."""
        return published(rows.messages(self._source.new_of(self._window, ranges), self._window.hi))

    def write(
        self, table: Any, properties: Mapping[str, str], since: int, told: Mapping[str, str]
    ) -> tuple[int, Sequence[Ids]]:
        """Write them as Arrow in one commit; return the rows, and the ranges that are left to Spark.

        The commit has the properties `told` if it leaves none.

        Raises:
            Exception: Java's, as Spark's writer raises it: another run wrote such rows `since` that snapshot.
        """
        is_ours = bool(self.ranges) and is_here(self._source.spark, self._settings)
        if not is_ours or commit.why_not(table, MESSAGE_HISTORY, properties):
            return 0, self.ranges
        place, name = f"{local_path(str(table.location()))}/data", uuid.uuid4().hex
        size = int(properties["write.target-file-size-bytes"])
        try:
            written = self._work(place, name, commit.schema_of(table), size)
            files = (file for its, _ in written for file in its)
            made = commit.described(self._source.spark._jvm, table, files, place)
        except Exception as error:  # noqa: BLE001  (a worker has died; what is wrong, Spark's own tasks will find)
            self._report(len(self.ranges), type(error).__name__)
            _remove(place, name)
            return 0, self.ranges
        left = [ids for ids, (_, reason) in zip(self.ranges, written, strict=True) if reason]
        if left:
            self._report(len(left), next(reason for _, reason in written if reason))
        if len(left) == len(self.ranges):
            return 0, self.ranges
        if not (made or left):
            return 0, left
        span = [Between("id", self._ids.lower, self._ids.upper)]
        told = {} if left else told
        return commit.commit(self._source.spark._jvm, table, made, span, since, told=told), left

    def _work(self, place: str, name: str, schema: bytes, file_bytes: int) -> list[task.Written]:
        begin, queries = self._source.copies(self._window, self.ranges)
        orders = [
            task.Order(begin, query, self._window.hi, place, name, schema, MESSAGE_HISTORY.day, file_bytes)
            for query in queries
        ]
        # Spark keeps what is distributed in a file for a moment, and a function in memory: the password is in that.
        work = functools.partial(task.work, self._settings.source.conninfo)
        if len(orders) == 1 and self.ranges[0].upper - self.ranges[0].lower <= LEAST_RANGE:
            return [work(orders[0])]  # (a job, and a process for its task, would cost more)
        return list(self._source.spark.sparkContext.parallelize(orders, len(orders)).map(work).collect())

    def _report(self, number: int, reason: str) -> None:
        self._say(
            f"{number} of {len(self.ranges)} parts are read row by row: {shown(reason, self._settings)}"
        )


def _remove(place: str, name: str) -> None:
    """Remove the files of an attempt, as far as they can be found; maintenance finds the others."""
    for path in [*Path(place).glob(f"*/{name}-*"), *Path(place).glob(f"*/.{name}-*")]:
        path.unlink(missing_ok=True)
