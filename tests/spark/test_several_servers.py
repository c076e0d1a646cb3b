"""A DSN that leads to several servers: all that a run reads is what its horizon speaks for, or the run fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from outbox_etl.errors import SourceError
from outbox_etl.export import export
from outbox_etl.failures import explained
from outbox_etl.source import reader
from outbox_etl.source.reader import Source
from outbox_local.stack.api import Stack
from tests.support.export_runs import Exports
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import connect
from tests.support.publications import value
from tests.support.spark_marks import MARKS
from tests.support.standbys import Crossing, at, has_replayed, standby
from tests.support.waiting import wait_until

pytestmark = MARKS


@pytest.fixture
def stream(private_database: str) -> Iterator[Stream]:
    """Some history, in a database that may have standbys."""
    stream = Stream(private_database, 7)
    for _ in range(30):
        stream.step()
    stream.settle()
    yield stream
    stream.close()


@pytest.fixture
def crossing() -> Iterator[Crossing]:
    """An address that leads to nobody yet."""
    crossing = Crossing(0)
    yield crossing
    crossing.close()


def port_of(dsn: str) -> int:
    return int(dsn.rpartition(":")[2].partition("/")[0])


def test_rows_are_not_taken_from_a_standby_that_is_behind_the_horizon(
    stream: Stream,
    private_stack: Stack,
    make_exports: Callable[..., Exports],
    crossing: Crossing,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    warehouse = make_exports(at(stream.dsn, crossing.address), format="parquet")
    primary = port_of(stream.dsn)
    with standby(private_stack, stream.dsn) as dsn, connect(dsn) as there:

        def cross(told: str) -> None:
            if told.startswith("window of transactions"):  # the horizon is known, and no row was read
                crossing.port = port_of(dsn)

        def run() -> None:
            crossing.port = primary
            export(warehouse.spark, warehouse.settings, warehouse.target, cross)

        wait_until(lambda: has_replayed(dsn, stream.dsn), "the standby to be level")
        run()
        assert not differences(warehouse.tables(), stream.truth())
        there.execute("SELECT pg_wal_replay_pause()")
        wait_until(
            lambda: value(there, "SELECT pg_get_wal_replay_pause_state()") == "paused", "replay to pause"
        )
        for _ in range(20):
            stream.step()
        stream.send()
        stream.settle()
        before = warehouse.hi
        monkeypatch.setattr(reader, "PATIENCE", 1)
        with pytest.raises(Exception, match="outbox-etl: a session came to a server") as raised:
            run()
        known = explained(raised.value)
        assert isinstance(known, SourceError)
        assert "--dsn leads to several servers" in str(known)
        assert warehouse.hi == before
        monkeypatch.setattr(reader, "PATIENCE", 60)
        there.execute("SELECT pg_wal_replay_resume()")
        run()
        assert not differences(warehouse.tables(), stream.truth())


def test_each_read_of_spark_shares_a_transaction_with_the_look_at_its_server(
    small_spark: SparkSession, database: str, make_exports: Callable[..., Exports]
) -> None:
    settings = make_exports(database, format="parquet").settings
    reads = Source(small_spark, settings)
    reads.cluster()
    properties = reads._properties()
    look = "SELECT pg_advisory_xact_lock(1)"
    assert "sessionInitStatement" in properties
    locks = "(SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) q"
    given = {**properties, "sessionInitStatement": look}
    read = small_spark.read.jdbc(settings.source.url, locks, properties=given)
    assert [row["n"] for row in read.collect()] == [1]
