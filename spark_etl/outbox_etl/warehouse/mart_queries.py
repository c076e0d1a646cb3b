"""The statements of the marts: counted by DuckDB where the warehouse is on this machine, else by Spark, alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from outbox_etl.statements import statement
from outbox_etl.warehouse.duck import Duck, UnreadableError
from outbox_etl.warehouse.files import Between
from outbox_etl.warehouse.mart_tables import DAYS, GAPS
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from outbox_etl.warehouse.target import Target

SQL = "marts.sql"
VIEWS = {
    "history": MESSAGE_HISTORY,
    "events": TRANSACTION_EVENTS,
    "publications": PUBLICATIONS,
    "gaps_before": GAPS,
    "made": DAYS,
}
"""What the statements read."""
Ranges = Sequence[Between] | None
"""The rows that lie in one of these ranges; None: all."""


class MartQueries:
    """Runs statements, and fills tables with what they count."""

    def __init__(
        self, spark: SparkSession, target: Target, say: Callable[[str], None], duck: Duck | None
    ) -> None:
        self._spark, self._target, self._say, self._duck = spark, target, say, duck
        self._seen: dict[str, Ranges] = {}

    def see(self, views: Mapping[str, Ranges]) -> None:
        """Have the next statements see at least such rows of these views; without a range, none."""
        self._seen = dict(views)
        if self._duck is None:
            return
        try:
            for name, ranges in views.items():
                files = self._target.files(VIEWS[name], ranges)
                if files is None:
                    raise UnreadableError("the warehouse is not on this machine, or has too many files")
                self._duck.view(name, VIEWS[name], files)
        except UnreadableError as error:
            self._leave_to_spark(error)

    def rows(self, name: str, **values: int | str) -> list[Mapping[str, Any]]:
        """The rows of a statement."""
        counted = self._by_duck(name, **values)
        if counted is not None:
            return list(counted.to_pylist())
        return [row.asDict() for row in self._by_spark(name, **values).collect()]

    def fill(self, table: Table, ranges: Ranges, name: str, **values: int | str) -> None:
        """Put the rows of a statement in the place of those that a table has in these ranges of days."""
        counted = self._by_duck(name, **values)
        if counted is not None and self._target.put(table, counted, ranges):
            return
        rows = self._by_spark(name, **values) if counted is None else self._spark.createDataFrame(counted)
        typed = [rows[column.name].cast(column.type) for column in table.columns]
        self._target.replace(table, rows.select(*typed).coalesce(1), condition(ranges))

    def empty(self, table: Table) -> None:
        """Empty a table whose figures no longer exist."""
        before = self._target.read(table)
        if not before.isEmpty():
            self._target.replace(table, before.where("false"), condition(None))

    def _by_duck(self, name: str, **values: int | str) -> Any:
        """The rows as Arrow's table; None: it is Spark's turn."""
        if self._duck is None:
            return None
        try:
            return self._duck.ask(statement(SQL, name, **values))
        except UnreadableError as error:
            self._leave_to_spark(error)
            return None

    def _leave_to_spark(self, error: UnreadableError) -> None:
        self._say(f"marts are counted by Spark: {error}")
        self._duck = None

    def _by_spark(self, name: str, **values: int | str) -> DataFrame:
        for view, ranges in self._seen.items():
            rows = self._target.read(VIEWS[view])
            (rows if ranges is None or ranges else rows.where("false")).createOrReplaceTempView(view)
        self._seen = {}
        return self._spark.sql(statement(SQL, name, **values))


def condition(ranges: Ranges) -> str:
    """The condition that a row's day lies in one of these ranges."""
    if ranges is None:
        return "true"
    each = (f"({r.column} >= DATE'{r.low}' AND {r.column} < DATE'{r.high}')" for r in ranges)
    return " OR ".join(each) or "false"
