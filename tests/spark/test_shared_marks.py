"""Merges by DuckDB over marks that several files of rows share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import NOWHERE, Exports
from tests.support.late_changes import HISTORY, files
from tests.support.merged_rows import LEFT_TO_SPARK, change, merge, put, row
from tests.support.spark_marks import MARKS

pytestmark = MARKS
GONE = (3, 13, 14, 23)


def states(table: Exports) -> dict[int, str]:
    rows = table.spark.sql(f"SELECT id, state FROM {HISTORY} ORDER BY id").collect()
    found = {row["id"]: row["state"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_marks_that_other_files_need_stay(
    small_spark: SparkSession, tmp_path: Path, commits: list[Any]
) -> None:
    table = Exports(small_spark, NOWHERE, tmp_path / "w")
    table.target.prepare(MESSAGE_HISTORY)
    for lower in (1, 11, 21):
        put(table, [row(number) for number in range(lower, lower + 10)])
    table.spark.sql(
        f"ALTER TABLE {HISTORY} SET TBLPROPERTIES "
        "('write.delete.mode' = 'merge-on-read', 'write.delete.granularity' = 'partition')"
    )
    table.spark.sql(f"DELETE FROM {HISTORY} WHERE id IN (3, 4, 13, 14, 23)")
    shared = files(table, 1)
    merge(table, [change(4), change(5), change(15), change(40)])
    assert shared <= files(table, 1)
    there = {number: "UNKNOWN" for number in [*range(1, 31), 40] if number not in GONE}
    assert states(table) == there | dict.fromkeys((4, 5, 15, 40), "COMMITTED")
    merge(table, [change(6), change(24), change(4, state="DEAD", xid=16)])
    assert states(table) == there | dict.fromkeys((5, 6, 15, 24, 40), "COMMITTED") | {4: "DEAD"}
    assert len(commits) == 2
    assert [line for line in table.said if LEFT_TO_SPARK in line] == []


def test_a_setting_of_icebergs_writer_leaves_the_merge_to_spark(
    small_spark: SparkSession, tmp_path: Path, commits: list[Any]
) -> None:
    table = Exports(small_spark, NOWHERE, tmp_path / "w")
    table.target.prepare(MESSAGE_HISTORY)
    put(table, [row(number) for number in range(1, 11)])
    table.spark.conf.set("spark.sql.iceberg.snapshot-property.who", "me")
    merge(table, [change(3)])
    newest = f"SELECT summary FROM {HISTORY}.snapshots ORDER BY committed_at DESC LIMIT 1"
    assert table.spark.sql(newest).collect()[0]["summary"]["who"] == "me"
    assert commits == []
    assert states(table)[3] == "COMMITTED"
