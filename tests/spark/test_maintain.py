"""Maintenance changes files and no row, whatever died before it; the watermark outlives every snapshot."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outbox_etl.errors import ConcurrentRunError, TargetError
from outbox_etl.source.reader import Source
from outbox_etl.source.window import Cluster, Watermark
from outbox_etl.warehouse import maintain_iceberg, maintain_parquet
from outbox_etl.warehouse.iceberg import name_of
from outbox_etl.warehouse.maintain import maintain
from outbox_etl.warehouse.maintain_request import MaintenanceRequest, MaintenanceResult
from outbox_etl.warehouse.manifest import FOLDER, LocalManifests, Manifest
from outbox_etl.warehouse.mart_tables import THROUGHPUT
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS
from tests.support.export_processes import running
from tests.support.export_runs import Exports, KilledError
from tests.support.message_streams import Stream
from tests.support.spark_marks import MARKS

pytestmark = MARKS
FORMATS = pytest.mark.parametrize("form", ["iceberg", "parquet"])
MakeExports = Callable[..., Exports]
NOTHING_OLD = MaintenanceRequest(keep=timedelta(0), newest=1)


def tend(exports: Exports, request: MaintenanceRequest | None = None) -> MaintenanceResult:
    """Maintain a warehouse of the test."""
    return maintain(
        exports.spark, exports.settings, exports.target, request or MaintenanceRequest(), exports.said.append
    )


def filled(exports: Exports, stream: Stream, *, runs: int = 3) -> None:
    """Let things happen, in several runs: each adds files."""
    for _ in range(runs):
        for _ in range(5):
            stream.step()
        stream.send()
        stream.half()
        stream.settle()  # (an open writer would hold the window back)
        exports.run()


def grown_old(exports: Exports, *, days: float) -> None:
    """Let the data be so old that no file is spared for its age."""
    then = time.time() - days * 86_400
    for path in Path(exports.settings.warehouse).rglob("*.parquet"):
        os.utime(path, (then, then))


def left_by_a_dead_run(exports: Exports, *, days: float) -> Path:
    """A file that nothing names, so many days old."""
    folder = Path(exports.settings.warehouse)
    folder = folder / ("outbox/publications/data" if exports.settings.format == "iceberg" else "publications")
    orphan = folder / f"dead-{days}" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"half a file")
    then = time.time() - days * 86_400
    os.utime(orphan, (then, then))
    return orphan


def states(exports: Exports) -> set[str]:
    """The states of message_history that can be read."""
    if exports.settings.format == "iceberg":
        rows = exports.spark.sql(f"SELECT snapshot_id FROM {name_of(MESSAGE_HISTORY)}.snapshots").collect()
        return {str(row["snapshot_id"]) for row in rows}
    return {path.name for path in (Path(exports.settings.warehouse) / FOLDER).glob("*.json")}


def count_at(exports: Exports, state: str) -> int:
    """How many messages there were in a state of the warehouse, as a reader finds them that has it open."""
    root = Path(exports.settings.warehouse)
    if exports.settings.format == "iceberg":
        return exports.spark.sql(f"SELECT id FROM {name_of(MESSAGE_HISTORY)} VERSION AS OF {state}").count()
    found = Manifest.of((root / FOLDER / state).read_text(), state).tables[MESSAGE_HISTORY.name].files
    return exports.spark.read.parquet(*(f"{root}/{file.path}" for file in found)).count() if found else 0


@FORMATS
def test_maintenance_joins_files_and_a_run_goes_on(
    form: str, database: str, make_exports: MakeExports
) -> None:
    exports, stream = make_exports(database, format=form), Stream(database, 5)
    filled(exports, stream)
    exports.target.prepare(THROUGHPUT)
    rows, mark, before = exports.tables(), exports.target.watermark(), states(exports)
    counts = {state: count_at(exports, state) for state in before}
    grown_old(exports, days=30)
    old, young = left_by_a_dead_run(exports, days=4), left_by_a_dead_run(exports, days=2)

    first = tend(exports)
    assert exports.tables() == rows
    assert exports.target.watermark() == mark
    files = {each.table: each.files for each in first.tables}
    assert files.keys() == {*rows, THROUGHPUT.name}
    for each in first.tables:
        assert each.files < each.files_before or each.table not in rows, each
    assert [each.orphans for each in first.tables if each.orphans] == [1]
    assert young.exists()
    assert not old.exists()
    assert first.expired == 0
    assert {state: count_at(exports, state) for state in before} == counts  # readers are not disturbed

    done = tend(exports, NOTHING_OLD)
    assert {each.table: each.files for each in done.tables} == files  # what is joined stays as it is
    assert done.expired >= len(before)
    assert len(states(exports)) == 1
    assert exports.tables() == rows
    assert exports.target.watermark() == mark
    stream.settle()
    exports.run()
    assert exports.tables() == stream.truth()
    stream.close()


@FORMATS
def test_a_run_after_one_that_died_and_maintenance_gives_the_truth(
    form: str, database: str, make_exports: MakeExports
) -> None:
    exports, stream = make_exports(database, format=form), Stream(database, 6)
    filled(exports, stream, runs=2)
    mark = exports.target.watermark()
    stream.half()
    stream.check()
    stream.send()
    stream.settle()
    with pytest.raises(KilledError):
        exports.run(
            die_at=2, after=True
        )  # events, publications and new messages are there, the watermark is not
    stream.decide()
    tend(exports, NOTHING_OLD)
    assert exports.target.watermark() == mark
    stream.settle()
    exports.run()
    assert exports.tables() == stream.truth()
    stream.close()


@FORMATS
def test_joined_files_have_ranges_of_their_own(
    form: str, make_exports: MakeExports, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge reads the files whose range may hold one of its ids: wide ranges would make it read them all."""
    exports = make_exports("postgresql://nobody@localhost:1/none", format=form)
    target, day = exports.target, datetime(2026, 3, 1, tzinfo=UTC)
    origin = Watermark(10, 5_000, Cluster("7", 1))
    target.prepare(PUBLICATIONS, MESSAGE_HISTORY, origin=origin)
    for part in range(4):
        rows = [(number, 0, number, day, 1, 1, part, part) for number in range(part, 4_000, 4)]
        written = exports.spark.createDataFrame(rows, PUBLICATIONS.schema).coalesce(1)
        target.replace(PUBLICATIONS, written, f"window_hi >= {part}" if part else "window_hi >= 0")
        target.mark(origin)
    data = Path(exports.settings.warehouse).rglob("*.parquet")
    size = sum(path.stat().st_size for path in data if "publications" in path.parts)
    for module in (maintain_iceberg, maintain_parquet):
        monkeypatch.setattr(module, "FILE", size // 2)
        monkeypatch.setattr(module, "SMALL", size // 3)
    if form == "iceberg":
        done = maintain_iceberg.IcebergMaintenance(
            exports.spark, exports.settings, target, MaintenanceRequest(), exports.said.append
        ).run()
        columns = "readable_metrics.position.lower_bound low, readable_metrics.position.upper_bound high"
        found = exports.spark.sql(f"SELECT {columns} FROM {name_of(PUBLICATIONS)}.files").collect()
        ranges = sorted((row["low"], row["high"]) for row in found)
    else:
        done = maintain_parquet.ParquetMaintenance(
            exports.spark, exports.settings, MaintenanceRequest(), exports.said.append
        ).run()
        newest = LocalManifests(Path(exports.settings.warehouse)).newest()
        ranges = sorted((file.low, file.high) for file in newest.tables[PUBLICATIONS.name].files)
    assert next(each.files_before for each in done if each.table == PUBLICATIONS.name) == 4
    assert len(ranges) > 1
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ranges)), ranges


@FORMATS
def test_the_command_maintains_a_warehouse_and_says_what_it_did(
    form: str, database: str, make_exports: MakeExports, tmp_path: Path
) -> None:
    exports, stream = make_exports(database, format=form), Stream(database, 8)
    filled(exports, stream, runs=2)
    rows, mark = exports.tables(), exports.target.watermark()
    grown_old(exports, days=30)
    old, young = left_by_a_dead_run(exports, days=4), left_by_a_dead_run(exports, days=2)
    given = ("--warehouse", exports.settings.warehouse, "--format", form, "--json")
    with running(database, tmp_path / "log", "maintain", *given) as run:
        assert run.code() == 0, run.log
    done = {each["table"]: each for each in json.loads(run.log.splitlines()[-1])["tables"]}
    assert done.keys() == rows.keys()
    assert all(each["files"] < each["files_before"] for each in done.values()), done
    assert sum(each["orphans"] for each in done.values()) == 1
    assert not old.exists()
    assert young.exists()
    assert exports.tables() == rows
    assert exports.target.watermark() == mark
    stream.decide()
    stream.send()
    stream.settle()
    exports.run()
    assert exports.tables() == stream.truth()
    stream.close()


def test_maintenance_beside_a_run_is_refused(database: str, make_exports: MakeExports) -> None:
    exports = make_exports(database, format="parquet")
    with (
        Source(exports.spark, exports.settings).lock(exports.settings.target),
        pytest.raises(ConcurrentRunError, match=r"another run is writing .*warehouse"),
    ):
        tend(exports)
    with pytest.raises(TargetError, match="empty: `outbox etl run` fills it"):
        tend(exports)
