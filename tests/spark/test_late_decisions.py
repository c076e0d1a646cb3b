"""A decision that comes late writes its own row: the file in which its message lies stays as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from outbox_etl.warehouse import iceberg, iceberg_merge, maintain_iceberg
from outbox_etl.warehouse.iceberg import IcebergTarget
from outbox_etl.warehouse.maintain_request import MaintenanceRequest
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports, KilledError
from tests.support.late_changes import (
    HISTORY,
    NOTHING_OLD,
    branches,
    decided_late,
    files,
    first_window,
    tend,
)
from tests.support.message_streams import Stream, differences
from tests.support.spark_marks import MARKS
from tests.support.warehouse_readers import by_duckdb_over_pyiceberg, by_pyiceberg

pytestmark = MARKS
MERGE = IcebergTarget._merge


@pytest.fixture
def exports(stream: Stream, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch) -> Exports:
    """A warehouse in which all changes of a window count as far apart, and Spark merges them."""
    monkeypatch.setattr(iceberg, "WIDE", 0)
    monkeypatch.setattr(iceberg_merge, "MOST_CHANGES", 0)
    return make_exports(stream.dsn)


@pytest.mark.gate
@pytest.mark.feature("H-01")
def test_late_decisions_leave_the_files_that_hold_their_messages(exports: Exports, stream: Stream) -> None:
    first_window(exports, stream)
    before, top = files(exports, 0), exports.target.top()
    decided_late(stream)
    exports.run()
    assert before
    assert before <= files(exports, 0)
    assert files(exports, 1)
    assert exports.target.top() > top
    assert not branches(exports)
    truth = stream.truth()
    assert not differences(exports.tables(), truth)
    for read in (by_pyiceberg, by_duckdb_over_pyiceberg):  # (people without Spark)
        rows = read(Path(exports.settings.warehouse), MESSAGE_HISTORY.name)
        stored = sorted((row["id"], row["message_id"], row["status"], row["checks"]) for row in rows)
        names = [name for name in MESSAGE_HISTORY.names if name != "window_hi"]
        places = [names.index(name) for name in ("id", "message_id", "status", "checks")]
        assert stored == sorted(tuple(row[place] for place in places) for row in truth[MESSAGE_HISTORY.name])
    mark = exports.target.watermark()
    tend(exports, NOTHING_OLD)
    assert exports.target.watermark() == mark
    assert not files(exports, 1)
    assert not differences(exports.tables(), truth)


def test_the_bodies_of_other_messages_are_neither_read_nor_moved_for_decisions(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_window(exports, stream)
    decided_late(stream)
    plans, kept, run = list[str](), list[int](), SparkSession.sql

    def explained_first(self: SparkSession, text: str) -> object:
        if text.startswith("MERGE"):
            kept.append(self.sparkContext._jsc.getPersistentRDDs().size())
            [row] = run(self, f"EXPLAIN FORMATTED {text}").collect()
            plans.append(row[0])
        return run(self, text)

    monkeypatch.setattr(SparkSession, "sql", explained_first)
    exports.run()
    assert kept == [2] * 3  # (what a statement writes must not have the changes read again, from PostgreSQL)
    # (in any order; what the table does not know is merged among its own ids only)
    [_] = [plan for plan in plans if "RightOuter" in plan]
    known = [plan for plan in plans if "RightOuter" not in plan]
    assert len(known) == 2
    for plan in known:
        tree = plan[: plan.index("InMemoryTableScan")]
        assert "BroadcastHashJoin Inner" in tree
        assert "SortMergeJoin" not in tree
    assert sorted(" body#" in columns_read(plan) for plan in known) == [False, True]


def columns_read(plan: str) -> str:
    """What a merge reads of the table."""
    found = re.search(r"BatchScan outbox.outbox.message_history\nOutput \[\d+\]: \[(.*)\]", plan)
    assert found
    return found[1]


@pytest.mark.parametrize("at", range(4))
def test_a_run_that_dies_between_its_statements_shows_nothing_of_them(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    first_window(exports, stream)
    mark, before = exports.target.watermark(), exports.tables()
    assert mark
    decided_late(stream)
    done: list[str] = []

    def dies(self: IcebergTarget, name: str, *given: object, **options: object) -> None:
        if len(done) == at:
            raise KilledError
        MERGE(self, name, *given, **options)  # type: ignore[arg-type]
        done.append(name)
        if len(done) == at == 3:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_merge", dies)
        with pytest.raises(KilledError):
            exports.run()
    assert len(done) == at
    assert exports.hi == mark.hi
    assert exports.tables(f"window_hi <= {mark.hi}") == before
    stream.decide()
    stream.publish()
    exports.run()
    assert not differences(exports.tables(), stream.truth())


def test_maintenance_forgets_the_branch_that_a_killed_run_left(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "LEFT_OVER", 1)
    first_window(exports, stream)
    target = exports.target
    target.prepare(MESSAGE_HISTORY)
    left = target._branch()  # type: ignore[attr-defined]
    name = left.__enter__()
    assert name
    assert branches(exports) == 1
    decided_late(stream)
    exports.run()
    assert branches(exports) == 1
    tend(exports, NOTHING_OLD)
    assert not branches(exports)
    assert not differences(exports.tables(), stream.truth())


def test_the_highest_id_is_found_with_and_without_statistics(exports: Exports, stream: Stream) -> None:
    first_window(exports, stream)
    assert exports.target.top() == max(row[0] for row in exports.rows(MESSAGE_HISTORY))
    exports.spark.sql(f"ALTER TABLE {HISTORY} SET TBLPROPERTIES ('write.metadata.metrics.default' = 'none')")
    stream.send()
    exports.run()
    assert exports.target.top() == max(row[0] for row in exports.rows(MESSAGE_HISTORY))


@pytest.mark.parametrize("chosen", [iceberg.COPY, iceberg.ON_READ])
def test_a_table_of_an_older_release_is_merged_on_read_too(
    exports: Exports, stream: Stream, chosen: str
) -> None:
    first_window(exports, stream)
    exports.spark.sql(f"ALTER TABLE {HISTORY} SET TBLPROPERTIES ('write.merge.mode' = '{chosen}')")
    before = files(exports, 0)
    decided_late(stream)
    exports.run()
    assert before <= files(exports, 0)
    assert files(exports, 1)
    assert not differences(exports.tables(), stream.truth())


def test_a_backfill_after_an_export_that_died_rewrites_the_files(exports: Exports, stream: Stream) -> None:
    for _ in range(6):
        stream.half()
        stream.send()
    with pytest.raises(KilledError):
        exports.run(die_at=3)  # (events, publications and messages are there, the watermark is not)
    assert exports.target.top()
    decided_late(stream)
    exports.run()  # ends the window of the one that died, and goes on: decisions write their own rows
    assert not differences(exports.tables(), stream.truth())
    decided_late(stream)
    exports.run()
    before, marks = files(exports, 0), files(exports, 1)
    assert marks
    exports.backfill()
    assert files(exports, 0) - before
    assert files(exports, 1) <= marks
    tend(exports, NOTHING_OLD)
    assert not before & files(exports, 0)
    assert not files(exports, 1)
    assert not differences(exports.tables(), stream.truth())


def test_a_message_that_is_there_twice_does_not_stop_the_runs(exports: Exports, stream: Stream) -> None:
    first_window(exports, stream)
    exports.spark.sql(f"INSERT INTO {HISTORY} SELECT * FROM {HISTORY} WHERE state = 'UNKNOWN'")
    exports.run()
    for _ in range(12):
        stream.decide()
    exports.run()
    assert not exports.rows(MESSAGE_HISTORY, "state = 'UNKNOWN'")


@pytest.mark.parametrize(("marked", "is_written"), [(0.01, True), (1.0, False)])
def test_a_large_file_is_written_anew_when_enough_of_its_rows_are_marked(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, *, marked: float, is_written: bool
) -> None:
    monkeypatch.setattr(maintain_iceberg, "SMALL", 0)
    monkeypatch.setattr(maintain_iceberg, "MARKED", marked)
    first_window(exports, stream)
    first = files(exports, 0)
    for _ in range(2):
        decided_late(stream)
        exports.run()
    tend(exports, MaintenanceRequest())
    assert bool(files(exports, 1)) != is_written
    assert (first <= files(exports, 0)) != is_written
    assert not differences(exports.tables(), stream.truth())
