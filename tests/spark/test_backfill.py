"""A backfill reads all again: it heals what differs, and after one that dies the next run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date

import pytest

from outbox_etl.warehouse.mart_tables import DAYS
from outbox_etl.warehouse.marts import refresh
from outbox_etl.warehouse.tables import PUBLICATIONS
from tests.support.export_runs import Exports, KilledError
from tests.support.message_streams import Stream, differences
from tests.support.spark_marks import MARKS

pytestmark = MARKS


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """Some history, with writers that are still open."""
    stream = Stream(database, 11)
    for _ in range(40):
        stream.step()
    stream.publish()
    yield stream
    stream.close()


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_a_run_goes_on_after_a_backfill_that_died(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    warehouse = make_exports(stream.dsn, format=form)
    warehouse.run()
    for die_at in range(3):
        for _ in range(10):
            stream.step()
        stream.half()
        stream.decide()
        stream.publish()
        with pytest.raises(KilledError):
            warehouse.backfill(die_at=die_at, after=True)
        stream.send()
        warehouse.run()
    stream.settle()
    warehouse.run()
    assert not differences(warehouse.tables(), stream.truth())


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_a_backfill_in_slices_finds_publications_at_positions_of_other_slices(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    stream.settle()
    warehouse = make_exports(stream.dsn, format=form)
    warehouse.run()
    for _ in range(6):
        stream.half()
        stream.send()
    for _ in range(12):
        stream.decide()
    for _ in range(6):
        stream.publish()
    warehouse.backfill(slice_rows=12)
    assert not differences(warehouse.tables(), stream.truth())


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_a_backfill_that_dies_leaves_no_day_of_the_marts_as_made(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    stream.settle()
    warehouse = make_exports(stream.dsn, format=form)
    warehouse.run()

    def made() -> list[date]:
        done = refresh(warehouse.spark, warehouse.settings, warehouse.target, warehouse.said.append)
        return list(done.days)

    days = made()
    assert days
    assert made() == []
    with pytest.raises(KilledError):
        warehouse.backfill(die_at=1)
    assert warehouse.target.read(DAYS).isEmpty()
    assert made() == days


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_a_backfill_heals_what_was_lost_and_keeps_what_postgresql_no_longer_holds(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    warehouse = make_exports(stream.dsn, format=form)
    stream.settle()
    warehouse.run()
    truth = stream.truth()
    target = warehouse.target
    target.prepare(PUBLICATIONS)
    target.replace(PUBLICATIONS, target.read(PUBLICATIONS).limit(0), "window_hi >= 0")
    stream.conn.execute("DELETE FROM outbox.event")
    warehouse.backfill(slice_rows=20)
    assert not differences(warehouse.tables(), truth)
    warehouse.run()
    assert not differences(warehouse.tables(), truth)
