"""Maintenance of Iceberg tables, by Iceberg's own procedures; the watermark is never among what expires."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from outbox_etl.errors import ConcurrentRunError, TargetError
from outbox_etl.session import CATALOG
from outbox_etl.source.window import Watermark
from outbox_etl.statements import statement
from outbox_etl.warehouse.iceberg import name_of
from outbox_etl.warehouse.maintain_request import ALL, FILE, SMALL, MaintenanceRequest, TableResult
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS, Table

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.target import Target

SQL = "maintain.sql"
GROUP = 32 << 30
"""Bytes that are sorted at once at most: Spark's local disks must hold them."""
MARKED = 0.1
"""The part of a file's rows that merges may have marked as deleted until it is rewritten."""
DELETED = (
    "deleted_data_files_count",
    "deleted_position_delete_files_count",
    "deleted_equality_delete_files_count",
    "deleted_manifest_files_count",
    "deleted_manifest_lists_count",
    "deleted_statistics_files_count",
)


class IcebergMaintenance:
    """Tends the tables of one catalog."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        target: Target,
        request: MaintenanceRequest,
        say: Callable[[str], None],
    ) -> None:
        self._spark, self._settings, self._target = spark, settings, target
        self._request, self._say = request, say
        self._mark = target.watermark()

    def run(self) -> list[TableResult]:
        """Tend each table that is there."""
        return [self._tend(table) for table in ALL if self._spark.catalog.tableExists(name_of(table))]

    def _tend(self, table: Table) -> TableResult:
        before = self._ask("sizes", table)
        self._compact(table)
        if table is MESSAGE_HISTORY:
            self._ask("compact_marks", table)
        self._ask("compact_manifests", table)
        if table is MESSAGE_HISTORY:
            self._mark_current()
        snapshots = self._ask("snapshots", table)["snapshots"]
        gone = self._ask("expire", table, before=_ago(self._request.keep), newest=self._request.newest)
        expired = snapshots - self._ask("snapshots", table)["snapshots"]
        orphans = self._remove_orphans(table)
        now = self._ask("sizes", table)
        self._say(f"{table.name}: {before['files']} files, now {now['files']}; {expired} snapshots expired")
        deleted = sum(gone[name] or 0 for name in DELETED)
        return TableResult(table.name, before["files"], now["files"], now["bytes"], expired, deleted, orphans)

    def _compact(self, table: Table) -> None:
        """Join small files.

        A run that died has left events and publications above the watermark. The next run replaces them as whole
        files (`Target.replace`), so they must not be joined with others: each file holds one window until it is below
        the watermark, and the condition leaves whole files out.
        """
        hi = self._mark.hi if self._mark else 0
        condition = f"window_hi <= {hi}" if table in (TRANSACTION_EVENTS, PUBLICATIONS) else "true"
        order = ", ".join(f"`{name}` ASC NULLS FIRST" for name in table.order)
        found = self._ask(
            "compact",
            table,
            condition=condition,
            order=order,
            target=FILE,
            small=SMALL,
            marked=str(MARKED),
            group=GROUP,
        )
        if failed := found["failed_data_files_count"]:
            raise TargetError(
                f"{failed} small files of {name_of(table)} could not be joined; no row is lost. Another tool "
                "writes the table, or the disk is full: read Spark's log, then run `outbox etl maintain` again"
            )

    def _mark_current(self) -> None:
        """Make sure that the current snapshot, which never expires, carries the watermark.

        Compaction's snapshots carry none. The watermark is found through their parents, and these may be about to
        expire. If maintenance dies right after this commit, there is one empty snapshot more.
        """
        self._target.prepare(MESSAGE_HISTORY)  # From here on the mark would be refused if a run came first.
        [row] = self._spark.sql(statement(SQL, "current", table=name_of(MESSAGE_HISTORY))).collect()
        if Watermark.of(row["summary"]) == self._mark:
            return
        if self._mark is None or self._target.watermark() != self._mark:
            # The lock says that there is none; its connection may have broken.
            raise ConcurrentRunError("a run moved the watermark meanwhile: run `outbox etl maintain` again")
        self._target.mark(self._mark)

    def _remove_orphans(self, table: Table) -> int:
        # Hadoop's own listing is parallel, but knows no object store that is reached through Iceberg's FileIO.
        by_prefix = self._settings.catalog == "rest" or "io-impl" in self._settings.catalog_options
        text = self._text(
            "orphans", table, before=_ago(self._request.orphans), prefix="true" if by_prefix else "false"
        )
        return self._spark.sql(text).count()

    def _ask(self, name: str, table: Table, **values: int | str) -> Row:
        [row] = self._spark.sql(self._text(name, table, **values)).collect()
        return row

    def _text(self, name: str, table: Table, **values: Any) -> str:
        return statement(SQL, name, catalog=CATALOG, table=name_of(table), **values)


def _ago(age: timedelta) -> str:
    """A time of the past as the session's time zone has it, which is UTC."""
    return f"{datetime.now(UTC) - age:%Y-%m-%d %H:%M:%S.%f}"
