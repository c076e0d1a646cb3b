"""The events or publications of a window, read by COPY on the driver where they are few: a job of Spark costs more.

Whatever is not certain is Spark's, which reads the same rows: more than `MOST_ROWS`, or long ones, a session that ends
early, a value that only Spark treats, a package that is missing. All rows are there before the first one is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outbox_etl.arrow import task
from outbox_etl.arrow.here import is_here, shown
from outbox_etl.source.reader import Source
from outbox_etl.source.window import Window

if TYPE_CHECKING:
    from outbox_etl.options.settings import Settings
    from outbox_etl.warehouse.tables import Table

MOST_ROWS = 50_000
"""Rows that are few: one file for each day."""
MOST_BYTES = 64 << 20
"""Bytes of Arrow that the driver takes; what is made of them needs five times as much."""


def few_rows(
    source: Source, settings: Settings, window: Window, table: Table, say: Callable[[str], None]
) -> Any:
    """Return the window's rows of transaction_events or publications as Arrow's table; None: Spark has to read them."""
    # A window of more messages has more publications, and to find that out would read PostgreSQL's tables in vain.
    if window.top - window.known > MOST_ROWS or not is_here(source.spark, settings):
        return None
    try:
        return _read(source, settings, window, table)
    except Exception as error:  # noqa: BLE001  (Spark reads the same, and reports what is wrong)
        say(f"{table.name} by Spark: {shown(task.reason_of(error), settings)}")
        return None


def _read(source: Source, settings: Settings, window: Window, table: Table) -> Any:
    import pyarrow as pa  # noqa: PLC0415

    begin, query = source.few(table.name, window, MOST_ROWS + 1)
    batches, size = list[Any](), 0
    with contextlib.closing(task.read(settings.source.conninfo, begin, query)) as read:
        for batch in read:
            batch.validate(full=True)
            batches.append(batch)
            size += batch.nbytes
            if size > MOST_BYTES:
                return None
    count = sum(batch.num_rows for batch in batches)
    if count > MOST_ROWS:
        return None
    if not count:
        return pa.table({name: pa.nulls(0) for name in table.names})
    rows = pa.Table.from_batches(batches)
    task.need_years(table.day, rows[table.day].cast(pa.int64()))
    return rows.append_column("window_hi", pa.repeat(pa.scalar(window.hi, pa.int64()), count))
