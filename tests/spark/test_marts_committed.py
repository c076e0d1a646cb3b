"""Marts that were counted are committed as Spark would commit them, or left to Spark."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from outbox_etl.warehouse import iceberg_put
from outbox_etl.warehouse.files import checksums_of
from outbox_etl.warehouse.mart_tables import LATENCY, THROUGHPUT
from tests.support.export_runs import Exports
from tests.support.marts_of_exports import first_run, made
from tests.support.message_streams import Stream
from tests.support.spark_marks import MARKS

pytestmark = MARKS


@pytest.fixture
def exports(stream: Stream, make_exports: Callable[..., Exports]) -> Exports:
    """A warehouse with marts of a message."""
    exports = make_exports(stream.dsn)
    first_run(exports, stream)
    return exports


@pytest.mark.gate
def test_marts_that_another_run_wrote_meanwhile_stop_the_commit(exports: Exports) -> None:
    one, other = exports.target, exports.target
    for target in (one, other):
        target.prepare(THROUGHPUT)
    rows = exports.target.read(THROUGHPUT).toArrow()
    assert other.put(THROUGHPUT, rows, None)
    data = Path(exports.settings.warehouse) / f"outbox/{THROUGHPUT.name}/data"
    before = sorted(data.rglob("*"))
    with pytest.raises(Exception, match="conflicting"):
        one.put(THROUGHPUT, rows, None)
    assert sorted(data.rglob("*")) == before
    assert exports.target.read(THROUGHPUT).toArrow() == rows


def test_a_mart_whose_files_are_made_in_another_way_is_written_by_spark(exports: Exports) -> None:
    exports.spark.sql(
        f"ALTER TABLE outbox.outbox.{LATENCY.name} SET TBLPROPERTIES ('write.parquet.compression-codec' = 'gzip')"
    )
    found = made(exports, by_duck=True)
    assert found == made(exports, by_duck=False)
    data = Path(exports.settings.warehouse) / f"outbox/{LATENCY.name}/data"
    newest = max(data.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    assert newest.name.startswith("00000-"), "a task of Spark gives such a name"


def test_marts_on_a_full_disk_are_left_to_spark_and_leave_no_file(
    exports: Exports, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = exports.target.read(THROUGHPUT).toArrow()
    data = Path(exports.settings.warehouse) / f"outbox/{THROUGHPUT.name}/data"
    before = sorted(data.rglob("*"))

    def full(path: str) -> None:
        checksums_of(path).write_bytes(b"crc")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(iceberg_put, "write_checksums", full)
    target = exports.target
    target.prepare(THROUGHPUT)
    assert not target.put(THROUGHPUT, rows, None)
    assert sorted(data.rglob("*")) == before
