"""Somebody else writes the warehouse while a run merges, as when its lock is lost: one fails, and nothing is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox_etl.errors import SparkError
from outbox_etl.failures import explained
from outbox_etl.source.window import Watermark
from outbox_etl.warehouse import iceberg, iceberg_merge
from outbox_etl.warehouse.iceberg import IcebergTarget
from outbox_etl.warehouse.maintain_iceberg import IcebergMaintenance
from outbox_etl.warehouse.maintain_request import MaintenanceRequest
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports
from tests.support.late_changes import (
    HISTORY,
    branches,
    decided_late,
    files,
    first_window,
    overtake,
    watermarks,
)
from tests.support.lost_locks import BREAK_LOCKS, is_refusal
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import connect
from tests.support.spark_marks import MARKS

pytestmark = MARKS
MERGE = IcebergTarget._merge
LIMIT = 300.0


@pytest.fixture
def exports(stream: Stream, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch) -> Exports:
    """A warehouse in which all changes of a window count as far apart, and Spark merges them."""
    monkeypatch.setattr(iceberg, "WIDE", 0)
    monkeypatch.setattr(iceberg_merge, "MOST_CHANGES", 0)
    return make_exports(stream.dsn)


@pytest.mark.parametrize("wide", [0, iceberg.WIDE])
@pytest.mark.parametrize("at", ["before", "after"])
def test_a_run_that_a_later_one_overtakes_at_its_merge_fails_and_takes_nothing_back(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, at: str, wide: int
) -> None:
    monkeypatch.setattr(iceberg, "WIDE", wide)
    first_window(exports, stream)
    decided_late(stream)
    happened: list[int] = []

    def overtaken(self: IcebergTarget, *given: object, **options: object) -> None:
        if at == "after":
            MERGE(self, *given, **options)  # type: ignore[arg-type]
        if not happened:
            happened.append(0)
            happened.append(overtake(stream, exports))
        if at == "before":
            MERGE(self, *given, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_merge", overtaken)
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
            exports.run()
    marks = watermarks(exports)
    assert marks[-1] == happened[1]
    assert marks == sorted(marks)
    assert not branches(exports)
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize("wide", [0, iceberg.WIDE])
def test_a_run_at_whose_merge_an_earlier_one_commits_fails_and_loses_nothing(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, wide: int
) -> None:
    """Both began at one watermark; the later one knows more, and has looked at the table before the other wrote it."""
    monkeypatch.setattr(iceberg, "WIDE", wide)
    first_window(exports, stream)
    earlier = Exports(exports.spark, stream.dsn, Path(exports.settings.warehouse))
    stream.check()
    stream.check()
    stream.publish()
    waits, goes, errors = threading.Event(), threading.Event(), list[BaseException]()

    def run_earlier() -> None:
        try:
            earlier.run()
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            errors.append(error)
            waits.set()

    thread = threading.Thread(target=run_earlier)

    def merge(self: IcebergTarget, *given: object, **options: object) -> None:
        if threading.current_thread() is thread:
            waits.set()
            assert goes.wait(LIMIT)
        elif not goes.is_set():
            goes.set()
            thread.join(LIMIT)
        MERGE(self, *given, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_merge", merge)
        thread.start()
        assert waits.wait(LIMIT)
        with connect(stream.dsn) as conn:
            conn.execute(BREAK_LOCKS)
        # (No ids are given out for these: the later run has no message to append, and writes the table at last only.)
        stream.conn.execute("UPDATE outbox.message SET state = 'ROLLED_BACK' WHERE state = 'UNKNOWN'")
        stream.publish()
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
            exports.run()
    assert not errors
    exports.run()
    marks = watermarks(exports)
    assert marks == sorted(marks)
    assert not differences(exports.tables(), stream.truth())


def test_a_watermark_is_not_put_over_a_later_one(exports: Exports, stream: Stream) -> None:
    first_window(exports, stream)
    mark, table = exports.target.watermark(), (MESSAGE_HISTORY,)
    assert mark
    early, late = exports.target, exports.target
    for target in (early, late):
        target.prepare(*table)
    late.mark(Watermark(mark.hi + 2, mark.top, mark.cluster))
    with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
        early.mark(Watermark(mark.hi + 1, mark.top, mark.cluster))
    now = exports.target.watermark()
    assert now
    assert now.hi == mark.hi + 2


def test_a_merge_is_refused_when_its_files_were_joined_meanwhile(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rows would be marked in files that are no more, and come twice: as they were, and as they are."""
    first_window(exports, stream)
    decided_late(stream)
    exports.run()
    decided_late(stream)
    before, joined = files(exports, 0), list[bool]()

    def merge(self: IcebergTarget, *given: object, **options: object) -> None:
        MERGE(self, *given, **options)  # type: ignore[arg-type]
        if not joined:
            joined.append(True)
            IcebergMaintenance(
                exports.spark, exports.settings, exports.target, MaintenanceRequest(), exports.said.append
            ).run()

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_merge", merge)
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
            exports.run()
    assert not before & files(exports, 0)
    exports.run()
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize("again", [True, False])
def test_a_branch_that_maintenance_drops_takes_no_later_watermark_with_it(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """Dropped before the run's commit, which makes it again from the newer table; or between that and the move."""
    first_window(exports, stream)
    mark = exports.target.watermark()
    assert mark
    early, late = new_target(exports), new_target(exports)
    for target in (early, late):
        target.prepare(MESSAGE_HISTORY)
    commit = IcebergTarget._empty_commit

    def dropped(self: IcebergTarget, *given: Any) -> None:
        if self is not early:
            return commit(self, *given)
        if not again:
            commit(self, *given)
        late.mark(Watermark(mark.hi + 2, mark.top, mark.cluster))
        early._load(MESSAGE_HISTORY).manageSnapshots().removeBranch(given[2]).commit()
        if again:
            commit(self, *given)
        return None

    monkeypatch.setattr(IcebergTarget, "_empty_commit", dropped)
    with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
        early.mark(Watermark(mark.hi + 1, mark.top, mark.cluster))
    now = exports.target.watermark()
    assert now
    assert now.hi == mark.hi + 2
    assert not branches(exports)


def test_the_branch_of_a_run_outlives_a_maintenance_however_old_the_table_is(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_window(exports, stream)
    tomorrow = time.time() + 86_400
    monkeypatch.setattr(iceberg, "LEFT_OVER", 60_000)
    monkeypatch.setattr("outbox_etl.warehouse.iceberg.time.time", lambda: tomorrow)
    target = new_target(exports)
    target.prepare(MESSAGE_HISTORY)
    with target._branch() as branch:
        [row] = exports.spark.sql(
            f"SELECT max_reference_age_in_ms AS age FROM {HISTORY}.refs WHERE name = '{branch}'"
        ).collect()
        assert row["age"] > 86_400_000
        target._empty_commit(MESSAGE_HISTORY, {}, branch)


def test_maintenance_does_not_put_its_watermark_over_a_later_one(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run commits between the look at the watermark and the commit that carries it on."""
    first_window(exports, stream)
    decided_late(stream)
    exports.run()
    mark = exports.target.watermark()
    assert mark
    marked = IcebergTarget.mark

    def overtaken(self: IcebergTarget, own: Watermark) -> None:
        run = new_target(exports)
        run.prepare(MESSAGE_HISTORY)
        marked(run, Watermark(mark.hi + 1, mark.top, mark.cluster))
        marked(self, own)

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "mark", overtaken)
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
            IcebergMaintenance(
                exports.spark, exports.settings, exports.target, MaintenanceRequest(), exports.said.append
            ).run()
    now = exports.target.watermark()
    assert now
    assert now.hi == mark.hi + 1


def test_a_change_that_is_read_again_and_is_another_one_stops_the_run(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor is lost between the choice of a statement and the statement, when its message has changed again.

    The new state belongs to the next window; this one has a check of that message left.
    """
    first_window(exports, stream)
    for _ in range(12):
        stream.check()
    stream.conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE state = 'UNKNOWN'")
    lost: list[bool] = []

    def lossy(self: IcebergTarget, *given: Any, all_newer: bool = False) -> None:
        if all_newer and not lost:
            for _ in range(40):
                stream.die()
            lose_first_blocks(exports)
            lost.append(True)
        MERGE(self, *given, all_newer=all_newer)

    with monkeypatch.context() as patch:
        patch.setattr(IcebergTarget, "_merge", lossy)
        with pytest.raises(Exception, match="not what it was") as raised:
            exports.run()
    assert lost
    assert isinstance(explained(raised.value), SparkError)
    assert not exports.rows(MESSAGE_HISTORY, "state IS NULL OR xid IS NULL")
    exports.run()
    assert not differences(exports.tables(), stream.truth())


def new_target(exports: Exports) -> IcebergTarget:
    target = exports.target
    assert isinstance(target, IcebergTarget)
    return target


def lose_first_blocks(exports: Exports) -> None:
    """Lose what the executors keep of the changes, and all that was shuffled."""
    context = exports.spark.sparkContext
    kept = sorted(int(number) for number in context._jsc.getPersistentRDDs().keySet())
    jvm: Any = context._jvm
    environment = jvm.org.apache.spark.SparkEnv.get()
    tracker = environment.mapOutputTracker()
    for shuffle in range(2000):
        if tracker.containsShuffle(shuffle):
            tracker.unregisterAllMapAndMergeOutput(shuffle)
    environment.blockManager().removeRdd(kept[0])
