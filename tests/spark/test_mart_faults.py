"""A mart that cannot be made is a fault of its own: what was exported stays, is verified, and the next run makes it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outbox_etl.warehouse import marts
from outbox_etl.warehouse.mart_tables import DAYS, LATENCY, MARTS
from outbox_etl.warehouse.marts import refresh
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports
from tests.support.marts_of_exports import made
from tests.support.message_streams import Stream
from tests.support.plain_inserts import insert
from tests.support.refused_jobs import Job, MakeWorld
from tests.support.spark_marks import MARKS

pytestmark = [*MARKS, pytest.mark.gate]

NO_CALENDARS = ["infinity", "-infinity", "4713-01-01 BC", "0001-01-01", "9999-12-31 12:00", "20000-01-01"]


@pytest.mark.feature("H-04")
def test_a_mart_that_fails_is_named_and_made_by_the_next_run_while_all_else_goes_on(
    make_world: MakeWorld, job: Job, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(marts, "refresh", refresh)
    world = make_world("iceberg")
    job.succeeds("run", *world.given)
    place, aside = world.place / f"outbox/{LATENCY.name}/data", tmp_path / "aside"
    shutil.move(place, aside)
    place.write_text("no folder")
    world.happens()

    report = tmp_path / "report.html"
    failed = job("run", *world.given, "--report", str(report))
    assert (failed.code, list(failed.answer["mart_faults"])) == (3, [LATENCY.name])
    assert failed.answer["messages"] > 0
    assert failed.answer["mart_days"] == []
    assert "mart_latency was not made, the next run makes it again: " in failed.err
    assert "mart_latency: " in report.read_text()
    world.is_true()
    counted = sum(row["sent"] for row in world.rows("mart_throughput"))
    assert counted == len(world.history()), "the others are made as ever"

    place.unlink()
    shutil.move(aside, place)
    again = job.succeeds("run", *world.given).answer
    assert again["mart_days"]
    assert "mart_faults" not in again
    assert sum(row["published"] for row in world.rows(LATENCY.name)) > 0


@pytest.mark.feature("H-04")
@pytest.mark.parametrize("by_duck", [True, False], ids=["duckdb", "spark"])
def test_times_of_birth_without_a_day_beside_them_are_exported_and_are_in_no_mart(
    stream: Stream, make_exports: Callable[..., Exports], by_duck: bool
) -> None:
    """Such rows are of before they were refused; an owner without triggers can still write them."""
    conn, exports = stream.conn, make_exports(stream.dsn)
    insert(conn, "t", "k", b"{}")
    conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER message_admission")
    for time in NO_CALENDARS:
        conn.execute(
            "INSERT INTO outbox.message (topic, key, body, lane, born_at) VALUES ('t', 'k', 'x', 0, %s::timestamptz)",
            [time],
        )
    conn.execute("ALTER TABLE outbox.message ENABLE ALWAYS TRIGGER message_admission")
    for _ in NO_CALENDARS:
        stream.publish()  # (some of them)
    exports.run()
    assert len(exports.rows(MESSAGE_HISTORY)) == 1 + len(NO_CALENDARS)
    found = made(exports, by_duck=by_duck, everything=False)
    assert [row["sent"] for row in found["mart_throughput"]] == [1]
    assert [row["published"] for row in found["mart_latency"]] == [1 + len(NO_CALENDARS)]
    assert [row["messages"] for row in found["mart_key_skew"]] == [1]
    assert not refresh(exports.spark, exports.settings, exports.target, exports.said.append).days
    assert exports.target.read(DAYS).count() == 1
    assert {table.name for table in MARTS} == found.keys()
