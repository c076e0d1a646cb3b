"""A few rows that are there as Arrow's table, written to an Iceberg table without a job of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outbox_etl.warehouse import iceberg_commit as commit
from outbox_etl.warehouse.files import Between, date_of, local_path, remove, write_checksums
from outbox_etl.warehouse.tables import Table


def put(
    jvm: Any,
    found: Any,
    table: Table,
    rows: Any,
    *,
    where: Sequence[Between] | None,
    properties: Mapping[str, str],
    since: int,
) -> bool:
    """Put rows in the place of those of these ranges, or of all, in one commit; one file for each day.

    A process that dies before the commit leaves files that no table names; `outbox etl maintain` deletes them. A commit
    that is refused leaves none.

    Returns:
        False: nothing was done, and Spark has to write them.

    Raises:
        Exception: Java's, as Spark's writer raises it: another run wrote such rows `since` that snapshot.
    """
    if commit.why_not(found, table, properties):
        return False
    paths: list[str] = []
    try:
        files = write_days(jvm, found, table, rows.select(columns_of(found).names), paths)
    except BaseException as error:
        remove(paths)
        if isinstance(error, Exception):
            return False  # (a full disk, a value that does not fit: Spark reports what is wrong)
        raise
    try:
        commit.commit(jvm, found, files, where, since)
    except Exception as error:
        if commit.is_refused(error):  # (else the table may have them)
            remove(paths)
        raise
    return True


def columns_of(found: Any) -> Any:
    """The columns of a table's files, as Arrow's schema with Iceberg's ids."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.ipc.read_schema(pa.py_buffer(commit.schema_of(found)))


def write_days(jvm: Any, found: Any, table: Table, rows: Any, paths: list[str]) -> list[Any]:
    """Write a file for each day, in the table's order; return what Iceberg keeps of each.

    Args:
        jvm: Spark's.
        found: Iceberg's table.
        table: the table that it is.
        rows: with the columns of its files, in their order; each is cast to their type.
        paths: takes the path of each file before it is written: the caller removes them if it fails.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    typed = rows.cast(columns_of(found)).sort_by([(name, "ascending") for name in table.order])
    days = typed[table.day].cast(pa.date32(), safe=False).cast(pa.int32())
    place = f"{local_path(str(found.location()))}/data"
    partition = found.spec().fields()[0].name()
    written: list[commit.WrittenFile] = []
    for day in pc.unique(days).to_pylist():
        path = f"{place}/{partition}={date_of(day)}/{uuid.uuid4().hex}.parquet"
        written.append((path, day, write(typed.filter(pc.equal(days, day)), path, paths)))
    return commit.described(jvm, found, written, place)


def write(rows: Any, path: str, paths: list[str]) -> int:
    """Write a file with its checksums; return its bytes. `paths` takes its path before."""
    import pyarrow.parquet as pq  # noqa: PLC0415

    Path(path).parent.mkdir(parents=True, exist_ok=True)
    paths.append(path)
    pq.write_table(rows, path, compression="zstd", store_schema=False)
    write_checksums(path)
    return Path(path).stat().st_size
