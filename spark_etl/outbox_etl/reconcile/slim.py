"""Slim rows for DuckDB: the statements that make them, and the batches of PostgreSQL that are certain to be alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from outbox_etl.arrow import task
from outbox_etl.reconcile.sources import APART, SOUND, UNIT
from outbox_etl.statements import statement
from outbox_etl.warehouse.duck import TYPES
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, TRANSACTION_EVENTS

if TYPE_CHECKING:
    import pyarrow as pa

SQL = "reconcile_local.sql"


def messages(rows: str, more: str = "") -> str:
    """The statement that makes slim rows of these; with `more` columns, of the warehouse's."""
    plain = [c for c in MESSAGE_HISTORY.columns if c.name not in APART | {"key", "body"}]
    lists = ["heads", *(c.name for c in plain if c.type.startswith("array"))]
    parts = [*(f'CAST("{c.name}" AS {TYPES[c.type]})' for c in plain), "heads", "digest", "key"]
    return statement(
        SQL,
        "messages",
        parts=", ".join([*parts, *(f"len({each})" for each in lists), _nulls(parts)]),
        unit=UNIT,
        digest=statement(SQL, "digest"),
        sound=SOUND.format(encoded="encode(body_json)", offset='"offset"') if more else "true",
        more=more,
        rows=rows,
    )


def events(rows: str) -> str:
    """The same of events."""
    columns = [c for c in TRANSACTION_EVENTS.columns if c.name != "window_hi"]
    parts = [f'CAST("{c.name}" AS {TYPES[c.type]})' for c in columns]
    return statement(SQL, "events", parts=", ".join([*parts, _nulls(parts)]), rows=rows)


def _nulls(parts: Sequence[str]) -> str:
    """Which of these are null, as a number."""
    return " + ".join(
        f"CASE WHEN {part} IS NULL THEN {1 << bit} ELSE 0 END" for bit, part in enumerate(parts)
    )


def reader(batches: Any, refused: list[Exception]) -> Any:
    """A reader of the batches with their headers as maps; why one is `refused` is kept there."""
    import pyarrow as pa  # noqa: PLC0415

    def certain() -> Iterator[pa.RecordBatch]:
        try:
            yield from map(certain_rows, batches)
        except Exception as error:
            refused.append(error)
            raise

    kinds = [
        pa.field(each.name, pa.map_(pa.string(), pa.string())) if each.name == "headers" else each
        for each in batches.schema
    ]
    return pa.RecordBatchReader.from_batches(pa.schema(kinds), certain())


def certain_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, if JDBC is known to give the same.

    Raises:
        UnsureError: it may not: an unusual header, or a time outside the years 1900 to 9999.
        Exception: a text is not UTF-8.
    """
    import pyarrow as pa  # noqa: PLC0415

    batch.validate(full=True)
    columns = list(batch.columns)
    for place, each in enumerate(batch.schema):
        if pa.types.is_timestamp(each.type):
            task.need_years(each.name, columns[place].cast(pa.int64()))
        if each.name == "headers":
            columns[place] = task.headers_of(columns[place])
    kinds = [pa.field(each.name, column.type) for each, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(kinds))
