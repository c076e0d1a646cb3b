"""A window's few events and publications, written without a job: the same rows as Spark's, or Spark's rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outbox_etl import export
from outbox_etl.arrow import few_rows as few
from outbox_etl.options.settings import Settings
from outbox_etl.source.reader import Source
from outbox_etl.source.window import Window
from outbox_etl.warehouse.tables import PUBLICATIONS, TRANSACTION_EVENTS, Table
from tests.support.export_runs import Exports, KilledError
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import connect
from tests.support.spark_marks import MARKS, first_in_gate

pytestmark = MARKS
BY_SPARK = "by Spark"


@pytest.fixture
def by_jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by each table that a job of Spark reads."""
    read = list[str]()
    for name in ("events", "publications"):
        kept = getattr(Source, name)

        def and_note(self: Source, window: Window, kept: Any = kept, name: str = name) -> Any:
            read.append(name)
            return kept(self, window)

        monkeypatch.setattr(Source, name, and_note)
    return read


@pytest.mark.parametrize("seed", first_in_gate(5, 6))
def test_windows_of_few_rows_are_written_without_a_job(
    database: str, make_exports: Callable[..., Exports], by_jobs: list[str], seed: int
) -> None:
    stream = Stream(database, seed)
    few_exports, other = make_exports(database, "few"), make_exports(database, "other")
    for exports in (few_exports, other):
        exports.run()
    by_jobs.clear()
    windows = 0
    for number in range(4):
        for _ in range(20):
            stream.step()
        if number == 3:
            stream.settle()
        ran = few_exports.run()
        assert len(by_jobs) == 2 * windows
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(export, "few_rows", lambda *_: None)
            other.run()
        windows += ran.window_hi > ran.window_lo  # (an open transaction ends them)
        assert len(by_jobs) == 2 * windows
    assert windows > 1
    truth = stream.truth()
    stream.close()
    assert few_exports.tables() == other.tables()
    assert not differences(few_exports.tables(), truth)
    for table in (TRANSACTION_EVENTS, PUBLICATIONS):
        data = Path(few_exports.settings.warehouse, "outbox", table.name, "data")
        assert all(path.with_name(f".{path.name}.crc").is_file() for path in data.rglob("*.parquet"))
        assert _partitions(few_exports, table.name) == _partitions(other, table.name)
    assert [line for line in few_exports.said if BY_SPARK in line] == []


def _partitions(exports: Exports, table: str) -> list[tuple[object, ...]]:
    """The days of a table as Iceberg has them, with their rows."""
    found = exports.spark.sql(
        f"SELECT partition, record_count FROM outbox.outbox.{table}.partitions ORDER BY partition"
    )
    return [tuple(row) for row in found.collect()]


def test_rows_that_are_not_few_are_read_by_spark(
    stream: Stream, make_exports: Callable[..., Exports], by_jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    for _ in range(3):
        stream.half()
    monkeypatch.setattr(few, "MOST_ROWS", len(stream.truth()["transaction_events"]) - 1)
    by_jobs.clear()
    exports.run()
    assert by_jobs == ["events"]
    assert not differences(exports.tables(), stream.truth())


def test_long_rows_and_many_new_messages_are_read_by_spark(
    stream: Stream, make_exports: Callable[..., Exports], by_jobs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    stream.half()
    with connect(stream.dsn) as conn:
        conn.execute("UPDATE outbox.event SET reason = repeat('x', 10000)")
    by_jobs.clear()
    with monkeypatch.context() as patch:
        patch.setattr(few, "MOST_BYTES", 10_000)
        exports.run()
    assert by_jobs == ["events"]
    stream.half()
    with connect(stream.dsn) as conn:
        conn.execute("SELECT setval('outbox.position', last_value + 50000) FROM outbox.position")
    by_jobs.clear()
    exports.run()
    assert sorted(by_jobs) == ["events", "publications"]
    assert not differences(exports.tables(), stream.truth())


@pytest.mark.parametrize("given", [{"format": "parquet"}, {}])
def test_tables_that_only_spark_writes_are_not_read_first(
    stream: Stream,
    make_exports: Callable[..., Exports],
    by_jobs: list[str],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, str],
) -> None:
    exports = make_exports(stream.dsn, **given)
    exports.run()
    if not given:
        for table in (TRANSACTION_EVENTS, PUBLICATIONS):
            exports.spark.sql(
                f"ALTER TABLE outbox.outbox.{table.name} "
                "SET TBLPROPERTIES ('write.parquet.compression-codec' = 'gzip')"
            )
    stream.half()
    stream.send()
    stream.publish()
    by_jobs.clear()
    monkeypatch.setattr(Source, "few", None)
    exports.run()
    assert sorted(by_jobs) == ["events", "publications"]
    assert not differences(exports.tables(), stream.truth())


def test_events_beyond_the_sequence_are_of_no_run(
    stream: Stream, make_exports: Callable[..., Exports], by_jobs: list[str]
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    stream.half()
    with connect(stream.dsn) as conn:
        conn.execute("UPDATE outbox.event SET id = 900 WHERE id = 1")
    by_jobs.clear()
    exports.run()
    assert by_jobs == []
    assert [row[1] for row in exports.rows(TRANSACTION_EVENTS)] == [2]


def test_what_only_spark_treats_is_read_by_spark(
    stream: Stream, make_exports: Callable[..., Exports], by_jobs: list[str]
) -> None:
    """JDBC moves times of long ago between two calendars."""
    exports = make_exports(stream.dsn)
    exports.run()
    stream.half()
    with connect(stream.dsn) as conn:
        conn.execute("UPDATE outbox.event SET happened_at = '1899-12-31 00:00:00+00'")
    by_jobs.clear()
    exports.run()
    assert by_jobs == ["events"]
    assert [line for line in exports.said if BY_SPARK in line] == [
        "transaction_events by Spark: happened_at outside the years 1900 to 9999"
    ]
    assert len(exports.rows(TRANSACTION_EVENTS)) == len(stream.truth()["transaction_events"]) > 0


@pytest.mark.parametrize("table", [TRANSACTION_EVENTS, PUBLICATIONS])
def test_another_run_that_wrote_few_rows_meanwhile_stops_the_commit(
    stream: Stream, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch, table: Table
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    stream.half()
    kept = few.few_rows

    def and_another_run(source: Source, settings: Settings, window: Window, of: Table, say: Any) -> Any:
        found = kept(source, settings, window, of, say)
        if of is table:
            exports.spark.sql(
                f"INSERT INTO outbox.outbox.{of.name} (xid, window_hi, {of.day}) VALUES (1, {window.hi}, now())"
            )
        return found

    monkeypatch.setattr(export, "few_rows", and_another_run)
    with pytest.raises(Exception, match="conflicting"):
        exports.run()
    assert [row[0 if table is TRANSACTION_EVENTS else 6] for row in exports.rows(table)] == [1]


def test_few_rows_that_a_dead_run_has_left_are_replaced(
    stream: Stream, make_exports: Callable[..., Exports], by_jobs: list[str]
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    stream.half()
    stream.send()
    stream.publish()
    by_jobs.clear()
    with pytest.raises(KilledError):
        exports.run(die_at=3)
    assert by_jobs == []
    stream.check()
    stream.send()
    exports.run()
    assert not differences(exports.tables(), stream.truth())
