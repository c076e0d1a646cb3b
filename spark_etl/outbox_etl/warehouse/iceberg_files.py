"""Which files an Iceberg table is made of, for a reader other than Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox_etl.warehouse.files import MOST_FILES, Between, ParquetFiles, local_path

Deletes = Sequence[str]
"""Paths of the files that mark rows of a file as deleted; an empty path: in another way than a merge of the job."""


def is_hadoop(table: Any) -> bool:
    """Whether a table's files are read and written through Hadoop, as the job's own catalog does."""
    return str(table.io().getClass().getName()).endswith(".HadoopFileIO")


def planned_files(
    jvm: Any, table: Any, where: Sequence[Between] | None, known: dict[str, Deletes]
) -> ParquetFiles | None:
    """Find the files of the current snapshot that may have rows of one of these ranges, or all.

    Args:
        jvm: py4j's.
        table: Iceberg's.
        where: the ranges.
        known: what was found out of files of this snapshot, and what is found out now: each question is a round trip.

    Returns:
        None: they are more than `MOST_FILES`, not on this machine, or not what the job writes.
    """
    if not is_hadoop(table):
        return None
    scan = table.newScan()
    if where is not None:
        scan = scan.filter(expression(jvm.org.apache.iceberg.expressions.Expressions, where))
    whole: list[str] = []
    marked: dict[str, str] = {}
    deletes: set[str] = set()
    planned = scan.planFiles()
    try:
        tasks = planned.iterator()
        while tasks.hasNext():
            task = tasks.next()
            name = str(task.file().location())
            if name not in known:
                known[name] = [_deletes(each) for each in task.deletes()]
            path, its = local_path(name), known[name]
            if not (path and all(its)) or len(whole) + len(marked) == MOST_FILES:
                return None
            if its:
                marked[name] = path
                deletes.update(its)
            else:
                whole.append(path)
    finally:
        planned.close()
    return ParquetFiles(whole, marked, sorted(deletes))


def _deletes(file: Any) -> str:
    """The path of a file that names deleted rows; empty: it does so in another way than a merge of the job."""
    if str(file.content()) != "POSITION_DELETES" or str(file.format()) != "PARQUET":
        return ""
    return local_path(str(file.location()))


def expression(expressions: Any, where: Sequence[Between]) -> Any:
    """State with Iceberg's `Expressions` that a row lies in one of these ranges."""
    found = expressions.alwaysFalse()
    for each in where:
        low = expressions.greaterThanOrEqual(each.column, each.low)
        both = getattr(expressions, "and")(low, expressions.lessThan(each.column, each.high))
        found = getattr(expressions, "or")(found, both)
    return found
