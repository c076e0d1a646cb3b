"""The marts of an export's warehouse, made by DuckDB or by Spark."""

from __future__ import annotations

from typing import Any

import pytest

from outbox_etl.warehouse import duck, marts
from outbox_etl.warehouse.mart_tables import MARTS
from tests.support.export_runs import Exports
from tests.support.message_streams import Stream

Rows = dict[str, list[dict[str, Any]]]


def made(exports: Exports, *, by_duck: bool, everything: bool = True) -> Rows:
    """The marts of an export's warehouse."""
    exports.said.clear()
    with pytest.MonkeyPatch.context() as patch:
        if not by_duck:
            patch.setattr(duck, "is_there", lambda: False)
        done = marts.refresh(
            exports.spark, exports.settings, exports.target, exports.said.append, everything=everything
        )
        assert not done.faults
    found = {
        table.name: [row.asDict() for row in exports.target.read(table).orderBy(*table.order).collect()]
        for table in MARTS
    }
    return found


def first_run(exports: Exports, stream: Stream) -> None:
    """Fill a warehouse, and its marts, with a published message."""
    stream.send()
    stream.publish()
    exports.run()
    made(exports, by_duck=True)
