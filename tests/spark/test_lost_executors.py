"""Executors, each a Java of its own, are killed while they read: it is read again, or the run says what it lost."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest

from tests.support.bare_reader import narrow_partitions
from tests.support.export_processes import (
    Run,
    alive,
    command_line,
    held_in_mid_read,
    running,
    wait_until_sessions_are_gone,
)
from tests.support.export_runs import Exports
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import Connection, insert
from tests.support.refused_jobs import waiting
from tests.support.spark_marks import MARKS
from tests.support.waiting import wait_until

pytestmark = MARKS
TWO_EXECUTORS = ("--master", "local-cluster[2,1,1024]")
"""A cluster on this machine: a master, two workers, and an executor of one core for each."""


@pytest.fixture(autouse=True)
def _no_traces() -> Iterator[None]:
    """Remove what the workers leave in Spark's own directory: they take no other."""
    place = Path(pyspark.__file__).parent / "work"
    before = set(place.glob("app-*"))
    yield
    for made in set(place.glob("app-*")) - before:
        shutil.rmtree(made)


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """An outbox of two partitions, with what the first window has."""
    stream = Stream(database, 9)
    narrow_partitions(stream.conn, count=2)
    stream.half()
    stream.send()
    stream.settle()
    yield stream
    stream.close()


def more_happens(stream: Stream) -> None:
    """The second window: new messages in both partitions, which two tasks read."""
    stream.decide()
    stream.check()
    for number in range(2):
        stream.conn.execute("SELECT setval('outbox.position', %s, false)", [100 + number * 1000])
        insert(stream.conn, "t", "large", os.urandom(10_000))
        stream.send()
    stream.settle()


def kill_one_that_reads(run: Run, conn: Connection) -> None:
    """Kill an executor when each has a task that waits."""
    wait_until(lambda: waiting(conn) == 2, "a read by each executor")
    found = executors(run)
    assert len(found) == 2
    os.kill(found[0], signal.SIGKILL)
    wait_until(lambda: not alive(found[0]), "its end")


def executors(run: Run) -> list[int]:
    """The processes of a run's executors."""
    return [pid for pid in run.all() if b"executor.CoarseGrainedExecutorBackend" in command_line(pid)]


def kill_all_that_read_rows(run: Run, conn: Connection) -> None:
    """Kill all executors when tasks of Spark's own wait: a run goes on row by row where no task could read."""
    wait_until(lambda: "2 of 2 parts are read row by row" in run.log, "the reason why")
    seen = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query NOT LIKE 'COPY%'"

    def are_there() -> bool:
        conn.execute("SELECT pg_stat_clear_snapshot()")
        return conn.execute(seen).fetchone() != (0,)

    wait_until(are_there, "a read, row by row")
    for pid in executors(run):
        os.kill(pid, signal.SIGKILL)


def test_a_run_that_loses_an_executor_reads_again_what_it_had_to_read(
    stream: Stream, make_exports: Callable[..., Exports], tmp_path: Path
) -> None:
    exports = make_exports(stream.dsn, format="parquet")
    exports.run()
    more_happens(stream)
    given = ("--warehouse", exports.settings.warehouse, "--format", "parquet", *TWO_EXECUTORS)
    with running(stream.dsn, tmp_path / "log", "run", *given) as run:
        with held_in_mid_read(stream.dsn, "message") as conn:
            kill_one_that_reads(run, conn)
        assert run.code() == 0, run.log
    assert not differences(exports.tables(), stream.truth())


def test_a_run_without_retries_reports_lost_executors_and_the_next_run_completes_it(
    stream: Stream, make_exports: Callable[..., Exports], tmp_path: Path
) -> None:
    exports = make_exports(stream.dsn)
    exports.run()
    mark, before = exports.target.watermark(), exports.tables()
    assert mark
    more_happens(stream)
    once = ("--warehouse", exports.settings.warehouse, *TWO_EXECUTORS, "--spark", "spark.task.maxFailures=1")
    with (
        running(stream.dsn, tmp_path / "log", "run", *once) as run,
        held_in_mid_read(stream.dsn, "message") as conn,
    ):
        kill_one_that_reads(run, conn)
        kill_all_that_read_rows(run, conn)
        code = run.code()
    assert code == 1, run.log
    assert "Spark lost its executors" in run.log
    assert "run again" in run.log
    assert "Traceback" not in run.log
    assert exports.hi == mark.hi
    assert exports.tables(f"window_hi <= {mark.hi}") == before
    wait_until_sessions_are_gone(stream.conn)
    exports.run()
    assert not differences(exports.tables(), stream.truth())
