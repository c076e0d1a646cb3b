"""DuckDB merges as Spark does, one run at a time, and leaves to Spark what is not certain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox_etl.warehouse import iceberg_merge
from outbox_etl.warehouse.iceberg_merge import Made
from outbox_etl.warehouse.maintain_iceberg import IcebergMaintenance
from outbox_etl.warehouse.maintain_request import MaintenanceRequest
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports, KilledError, plain
from tests.support.late_changes import (
    NOTHING_OLD,
    branches,
    decided_late,
    files,
    first_window,
    overtake,
    tend,
    watermarks,
)
from tests.support.lost_locks import is_refusal
from tests.support.merged_rows import LEFT_TO_SPARK
from tests.support.message_streams import Stream, differences
from tests.support.spark_marks import MARKS
from tests.support.warehouse_readers import by_duckdb_over_pyiceberg, by_pyiceberg

pytestmark = MARKS
COMMIT = Made.commit
Make = Callable[..., Exports]


@pytest.fixture
def exports(stream: Stream, make_exports: Make) -> Exports:
    """A warehouse with a window of messages."""
    exports = make_exports(stream.dsn)
    first_window(exports, stream)
    return exports


@pytest.mark.gate
@pytest.mark.feature("H-01")
def test_late_decisions_are_merged_without_spark_and_seen_by_all_readers(
    exports: Exports, stream: Stream, commits: list[Made]
) -> None:
    before = files(exports, 0)
    for _ in range(3):
        decided_late(stream)
        exports.run()
    assert len(commits) == 3
    assert not [line for line in exports.said if LEFT_TO_SPARK in line]
    assert before <= files(exports, 0)
    assert files(exports, 1)
    assert len(files(exports, 1)) <= len(files(exports, 0)), "a file of rows has one file of marks at most"
    assert not branches(exports)
    truth = stream.truth()
    assert not differences(exports.tables(), truth)
    names = [name for name in MESSAGE_HISTORY.names if name != "window_hi"]
    shown = ("id", "message_id", "status", "checks", "body", "tags", "xid")
    places = [names.index(name) for name in shown]
    for read in (by_pyiceberg, by_duckdb_over_pyiceberg):
        rows = plain(
            [row[name] for name in shown] for row in read(Path(exports.settings.warehouse), "message_history")
        )
        assert rows == plain([row[place] for place in places] for row in truth["message_history"])
    mark = exports.target.watermark()
    tend(exports, NOTHING_OLD)
    assert exports.target.watermark() == mark
    assert not files(exports, 1)
    assert not differences(exports.tables(), truth)


@pytest.mark.parametrize("seed", range(2))
def test_windows_of_chance_become_the_same_by_both(
    seed: int, database: str, make_exports: Make, monkeypatch: pytest.MonkeyPatch, commits: list[Made]
) -> None:
    stream = Stream(database, seed)
    duck, spark = make_exports(database, "duck"), make_exports(database, "spark")
    for _ in range(6):
        story = [stream.step() for _ in range(stream.random.randint(10, 30))]
        duck.run()
        with monkeypatch.context() as patch:
            patch.setattr(iceberg_merge, "MOST_CHANGES", 0)
            spark.run()
        assert not differences(duck.tables(), spark.tables()), story
    stream.settle()
    duck.run()
    assert commits
    assert not [line for line in duck.said if LEFT_TO_SPARK in line]
    assert not differences(duck.tables(), stream.truth())
    tend(duck, NOTHING_OLD)
    assert not differences(duck.tables(), stream.truth())
    stream.close()


# What a run dies in, or what comes in between.


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_run_that_dies_at_its_commit_shows_nothing_of_it(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    mark, before = exports.target.watermark(), exports.tables()
    assert mark
    decided_late(stream)

    def dies(self: Made, *given: Any) -> None:
        if at == "after":
            COMMIT(self, *given)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(Made, "commit", dies)
        with pytest.raises(KilledError):
            exports.run()
    assert exports.hi == mark.hi
    assert exports.tables(f"window_hi <= {mark.hi}") == before
    stream.decide()
    stream.publish()
    exports.run()
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_run_that_is_overtaken_at_its_commit_fails_and_takes_nothing_back(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    decided_late(stream)
    happened: list[int] = []

    def overtaken(self: Made, *given: Any) -> None:
        if at == "after":
            COMMIT(self, *given)
        if not happened:
            happened.append(0)
            happened.append(overtake(stream, exports))
        if at == "before":
            COMMIT(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Made, "commit", overtaken)
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
            exports.run()
    marks = watermarks(exports)
    assert marks[-1] == happened[1]
    assert marks == sorted(marks)
    assert not branches(exports)
    assert not differences(exports.tables(), stream.truth())
    decided_late(stream)
    exports.run()
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize("at", ["before", "after"])
def test_a_merge_is_refused_when_its_files_were_joined_meanwhile(
    exports: Exports, stream: Stream, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    decided_late(stream)
    exports.run()
    decided_late(stream)
    joined: list[bool] = []

    def meanwhile(self: Made, *given: Any) -> None:
        if at == "after":
            COMMIT(self, *given)
        joined.append(True)
        request, said = MaintenanceRequest(), exports.said.append
        IcebergMaintenance(exports.spark, exports.settings, exports.target, request, said).run()
        if at == "before":
            COMMIT(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Made, "commit", meanwhile)
        with pytest.raises(Exception, check=is_refusal):  # noqa: B017  (Java's)
            exports.run()
    assert joined
    exports.run()
    assert not differences(exports.tables(), stream.truth())
