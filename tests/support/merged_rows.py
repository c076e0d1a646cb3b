"""A message_history of rows that a test writes itself, and changes that are merged into it."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from outbox_etl.source.reader import Ids
from outbox_etl.source.window import Cluster, Watermark
from outbox_etl.warehouse.iceberg import IcebergTarget
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from outbox_etl.warehouse.target import Merging
from tests.support.export_runs import Exports
from tests.support.late_changes import HISTORY

LEFT_TO_SPARK = "merged by Spark"
CLUSTER = Cluster("1", 1, 1)
DAY = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def data_files(exports: Exports) -> set[Path]:
    """The files that lie in message_history's folder, whether or not it names them."""
    return {
        each for each in (Path(exports.settings.warehouse) / "outbox").rglob("data/**/*") if each.is_file()
    }


def row(number: int, **given: Any) -> dict[str, Any]:
    """A message of the first window."""
    base = dict.fromkeys(MESSAGE_HISTORY.names) | {
        "id": number,
        "message_id": f"m{number}",
        "topic": "t",
        "state": "UNKNOWN",
        "status": "UNKNOWN",
        "born_at": DAY,
        "lane": 0,
        "checks": 0,
        "xid": 5,
        "window_hi": 10,
        "position": number,
    }
    return base | given


def frame(table: Exports, rows: list[dict[str, Any]], more: str = "") -> Any:
    names = [*MESSAGE_HISTORY.names, *(["is_message"] if more else [])]
    return table.spark.createDataFrame(
        [[each[name] for name in names] for each in rows], MESSAGE_HISTORY.schema + more
    )


def put(table: Exports, rows: list[dict[str, Any]]) -> None:
    frame(table, rows).coalesce(1).writeTo(HISTORY).append()


def change(number: int, **given: Any) -> dict[str, Any]:
    """A decision of the second window."""
    return row(number, state="COMMITTED", status="COMMITTED", xid=15, window_hi=20, is_message=True) | given


def merge(table: Exports, changes: list[dict[str, Any]], target: IcebergTarget | None = None) -> None:
    given = frame(table, changes, ", is_message boolean")
    target = target or IcebergTarget(table.spark)
    target.prepare(MESSAGE_HISTORY)
    ids = Ids(min(each["id"] for each in changes), max(each["id"] for each in changes) + 1)
    how = Merging(20, ids, rows=len(changes), size=1000, say=table.said.append)
    target.merge(given, Watermark(20, 99, CLUSTER), how)


def of_chance(
    chance: random.Random, number: int, *, window_hi: int = 20, is_message: bool = True
) -> dict[str, Any]:
    """A row of anything; a change that brings no state has the columns of a publication or a check only."""

    def one_of(*values: Any) -> Any:
        return chance.choice(values)

    def moment() -> datetime:
        return DAY + timedelta(microseconds=chance.randrange(-86_400_000_000, 3 * 86_400_000_000))

    state = one_of("COMMITTED", "COMMITTED", "UNKNOWN", "DEAD")
    published = one_of(None, moment()) if state == "COMMITTED" or not is_message else None
    values = {
        "key": one_of(None, b"", b"\x00\xff", b"k"),
        "body": one_of(None, b"", b"\xff", b"{}"),
        "body_json": one_of(None, "", "ü€😀", "{}"),
        "headers": one_of(None, {}, {"a": None, "": "ü"}, {"b": "", "a": "1"}),
        "tags": one_of(None, [], ["a", None, ""], ["b,c"]),
        "index_keys": one_of(None, [], ["k"]),
        "order_key": one_of(None, b"o"),
        "queue": one_of(None, 0, 2**31 - 1),
        "remark": one_of(None, "", "it's `so` {x}"),
        "state": state,
        "born_at": DAY + timedelta(hours=7 * number),
        "decided_at": one_of(
            None, moment(), datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
        ),
        "deliver_at": one_of(None, datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        "position": one_of(None, number, number + 1),
        "published_at": published,
        "partition": one_of(None, 0, 7) if published else None,
        "offset": one_of(None, -1, 2**62) if published else None,
        "checks": one_of(0, 3) if is_message else one_of(None, 4),
        "xid": one_of(5, 9) if window_hi == 10 else one_of(3, 7, 15, 25),
        "window_hi": window_hi,
    }
    values["status"] = one_of("PUBLISHED", "LOST") if published else state
    if is_message:
        return row(number, **values, is_message=True)
    kept = ("position", "published_at", "partition", "offset", "checks")
    nothing = dict.fromkeys(MESSAGE_HISTORY.names) | {
        "id": number,
        "message_id": f"m{number}",
        "is_message": False,
    }
    return nothing | {name: values[name] for name in kept}
