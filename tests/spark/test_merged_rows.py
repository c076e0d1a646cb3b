"""What becomes of rows is the same by DuckDB and by Spark, and Spark has what is not certain."""

from __future__ import annotations

import errno
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outbox_etl.source.window import Watermark
from outbox_etl.warehouse import iceberg_merge, iceberg_put
from outbox_etl.warehouse.duck import Duck
from outbox_etl.warehouse.files import checksums_of, local_path
from outbox_etl.warehouse.iceberg import IcebergTarget
from outbox_etl.warehouse.iceberg_merge import Made
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import NOWHERE, Exports, KilledError, Rows, plain
from tests.support.late_changes import HISTORY, files
from tests.support.merged_rows import CLUSTER, LEFT_TO_SPARK, change, data_files, merge, of_chance, put, row
from tests.support.spark_marks import MARKS, first_in_gate

pytestmark = MARKS
COMMIT = Made.commit


# A commit is refused by Iceberg itself too, should the branch have been made again from a newer table.


@pytest.fixture
def table(small_spark: SparkSession, tmp_path: Path) -> Exports:
    """A warehouse of rows that the test writes itself, in two files."""
    table = Exports(small_spark, NOWHERE, tmp_path / "warehouse")
    table.target.prepare(MESSAGE_HISTORY)
    for lower in (1, 11):
        put(table, [row(number) for number in range(lower, lower + 10)])
    return table


def interfere(table: Exports, how: str) -> None:
    if how == "rows are marked":
        table.spark.sql(f"DELETE FROM {HISTORY} WHERE id = 3")
    elif how == "rows are added":
        put(table, [row(3)])
    elif how == "a file is replaced":
        table.spark.sql("CALL outbox.system.rewrite_data_files(table => 'outbox.outbox.message_history', "
                        "options => map('rewrite-all', 'true'))")  # fmt: skip
    else:
        table.spark.sql(f"DELETE FROM {HISTORY} WHERE id < 11")  # (a whole file)


@pytest.mark.parametrize(
    "how", ["rows are marked", "rows are added", "a file is replaced", "a file is deleted"]
)
def test_iceberg_refuses_a_commit_to_rows_that_somebody_has_changed(
    table: Exports, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    refused: list[Made] = []

    def commit(self: Made, branch: str, properties: dict[str, str]) -> None:
        interfere(table, how)
        with pytest.raises(Exception, match=r"ValidationException|conflicting|missing"):
            COMMIT(self, "main", properties)
        assert all(Path(path).exists() for path in self.paths)
        refused.append(self)
        raise KilledError

    table.spark.sql(f"ALTER TABLE {HISTORY} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    monkeypatch.setattr(Made, "commit", commit)
    with pytest.raises(KilledError):
        merge(table, [change(3), change(4)])
    [merge_] = refused
    assert merge_.paths
    assert not [path for path in merge_.paths if Path(path).exists()]


# What comes out.


@pytest.mark.parametrize("seed", first_in_gate(*range(3)))
def test_rows_of_chance_become_the_same_by_both(
    small_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: list[Made], seed: int
) -> None:
    found: list[Rows] = []
    for few in (iceberg_merge.MOST_CHANGES, 0):
        monkeypatch.setattr(iceberg_merge, "MOST_CHANGES", few)
        table, chance = Exports(small_spark, NOWHERE, tmp_path / str(few)), random.Random(seed)
        table.target.prepare(MESSAGE_HISTORY)
        for lower in range(1, 400, 100):
            put(table, [of_chance(chance, number, window_hi=10) for number in range(lower, lower + 100)])
        for _ in range(3):
            ids = chance.sample(range(1, 460), 60)
            merge(table, [of_chance(chance, number, is_message=chance.random() < 0.7) for number in ids])
        assert not [line for line in table.said if LEFT_TO_SPARK in line]
        columns = [
            f"unix_micros({c.name})" if c.type == "timestamp" else f"`{c.name}`"
            for c in MESSAGE_HISTORY.columns
        ]
        found.append(plain(table.target.read(MESSAGE_HISTORY).selectExpr(*columns).collect()))
        assert any(each[1].startswith("m45") for each in found[-1])
    assert len(commits) == 3
    assert found[0] == found[1]


def test_a_message_that_is_there_twice_is_merged_twice(table: Exports, commits: list[Made]) -> None:
    put(table, [row(3)])
    merge(table, [change(3)])
    assert len(commits) == 1
    assert table.spark.sql(f"SELECT 1 FROM {HISTORY} WHERE id = 3 AND state = 'COMMITTED'").count() == 2
    assert table.spark.sql(f"SELECT 1 FROM {HISTORY}").count() == 21


def test_two_changes_of_a_message_stop_the_run(table: Exports) -> None:
    with pytest.raises(Exception, match="MERGE_CARDINALITY_VIOLATION"):
        merge(table, [change(3), change(3, state="DEAD")])
    assert [line for line in table.said if "a message has two changes" in line]


def test_a_change_of_which_nothing_is_there_commits_the_watermark(
    table: Exports, commits: list[Made]
) -> None:
    gone = dict.fromkeys(MESSAGE_HISTORY.names) | {
        "id": 30,
        "message_id": "m30",
        "checks": 1,
        "is_message": False,
    }
    merge(table, [gone])
    assert len(commits) == 1
    assert table.target.watermark() == Watermark(20, 99, CLUSTER)
    assert table.spark.sql(f"SELECT 1 FROM {HISTORY}").count() == 20


# What is left to Spark.


def unsound(table: Exports, patch: pytest.MonkeyPatch) -> None:
    [path, *_] = sorted(map(local_path, files(table, 0)))
    checksums_of(path).unlink()
    checksums_of(path).write_bytes(b"crc\0\0\0\2\0other")


def another_property(table: Exports, patch: pytest.MonkeyPatch) -> None:
    table.spark.sql(f"ALTER TABLE {HISTORY} SET TBLPROPERTIES ('write.parquet.compression-codec' = 'gzip')")


def full(table: Exports, patch: pytest.MonkeyPatch) -> None:
    def raises(path: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(iceberg_put, "write_checksums", raises)


def no_memory(table: Exports, patch: pytest.MonkeyPatch) -> None:
    def raises(self: Duck, text: str) -> Any:
        raise MemoryError

    patch.setattr(Duck, "_rows_of", raises)


def at_the_end(table: Exports, patch: pytest.MonkeyPatch) -> None:
    def raises(self: Duck) -> None:
        raise OSError(errno.EIO, "Input/output error")

    patch.setattr(Duck, "close", raises)


def in_many_files(table: Exports, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(iceberg_merge, "MOST_MARKED", 1)


def nothing_odd(table: Exports, patch: pytest.MonkeyPatch) -> None:
    """The change is what is odd."""


OLD = datetime(1899, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("odd", "reason", "given"),
    [
        (another_property, "write.parquet.compression-codec is not the job's", {}),
        (full, "OSError", {}),
        (no_memory, "MemoryError", {}),
        (at_the_end, "OSError", {}),
        (in_many_files, "of too many files", {}),
        (nothing_odd, "outside the years", {"deliver_at": OLD}),
    ],
)
def test_what_is_not_certain_is_merged_by_spark_and_leaves_no_file(
    table: Exports,
    monkeypatch: pytest.MonkeyPatch,
    commits: list[Made],
    *,
    odd: Any,
    reason: str,
    given: dict[str, Any],
) -> None:
    odd(table, monkeypatch)
    before, kept = data_files(table), set[Path]()
    by_spark = IcebergTarget._merge

    def _merge(self: IcebergTarget, *given: Any, **options: Any) -> None:
        kept.update(data_files(table))
        by_spark(self, *given, **options)

    monkeypatch.setattr(IcebergTarget, "_merge", _merge)
    merge(table, [change(3, **given), change(13)])
    assert not commits
    assert [line for line in table.said if LEFT_TO_SPARK in line and reason in line], table.said
    assert kept == before
    assert table.spark.sql(f"SELECT 1 FROM {HISTORY} WHERE state = 'COMMITTED'").count() == 2


def test_rows_that_are_too_large_for_the_driver_are_left_to_spark(
    table: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_merge, "MOST_WRITTEN", 10)
    merge(table, [change(3, is_message=False, checks=7)])
    assert [line for line in table.said if LEFT_TO_SPARK in line and "more than 10 bytes" in line]
    assert [
        row["checks"] for row in table.spark.sql(f"SELECT checks FROM {HISTORY} WHERE id = 3").collect()
    ] == [7]


def test_a_damaged_file_is_left_to_spark_that_reports_it(
    table: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    unsound(table, monkeypatch)
    with pytest.raises(Exception, match=r"[Cc]hecksum"):
        merge(table, [change(3), change(13)])
    assert [line for line in table.said if "does not have its checksums" in line]
