"""A few rows that are there as Arrow's table, written to an Iceberg table without a job of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outbox_etl.warehouse import iceberg_commit as commit
from outbox_etl.warehouse.files import Between, date_of, local_path, remove, write_checksums
from outbox_etl.warehouse.tables import Table


def is_possible(found: Any, table: Table, properties: Mapping[str, str]) -> bool:
    """Whether Iceberg's table `found` lies on this machine and is made as the job makes it."""
    root = local_path(str(found.location()))
    return bool(root) and Path(root).is_dir() and not commit.why_not(found, table, properties)


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
    if not is_possible(found, table, properties):
        return False
    root = local_path(str(found.location()))
    written: list[commit.WrittenFile] = []
    try:
        partition = found.spec().fields()[0].name()
        for day, part in _by_day(table, rows, commit.schema_of(found)):
            written.append(_write(part, f"{root}/data/{partition}={date_of(day)}", day))
        files = commit.described(jvm, found, written, f"{root}/data")
    except Exception:  # noqa: BLE001  (a full disk, a value that does not fit: Spark reports what is wrong)
        remove(path for path, *_ in written)
        return False
    try:
        commit.commit(jvm, found, files, where, since)
    except Exception as error:
        if commit.is_refused(error):  # (else the table may have them)
            remove(path for path, *_ in written)
        raise
    return True


def _by_day(table: Table, rows: Any, serialized: bytes) -> list[tuple[int, Any]]:
    """The rows of each day, in the table's order, with the columns of its files."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    schema = pa.ipc.read_schema(pa.py_buffer(serialized))
    typed = rows.select(schema.names).cast(schema).sort_by([(name, "ascending") for name in table.order])
    days = typed[table.day].cast(pa.date32(), safe=False).cast(pa.int32())
    return [(day, typed.filter(pc.equal(days, day))) for day in pc.unique(days).to_pylist()]


def _write(rows: Any, folder: str, day: int) -> commit.WrittenFile:
    import pyarrow.parquet as pq  # noqa: PLC0415

    Path(folder).mkdir(parents=True, exist_ok=True)
    path = f"{folder}/{uuid.uuid4().hex}.parquet"
    try:
        pq.write_table(rows, path, compression="zstd", store_schema=False)
        write_checksums(path)
    except BaseException:
        remove([path])
        raise
    return path, day, Path(path).stat().st_size
