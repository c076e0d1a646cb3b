"""A run is killed with SIGKILL at every stage: readers see the state before it, and the next run gives the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.marts import refresh
from outbox_etl.warehouse.tables import CORE
from tests.support.bare_reader import narrow_partitions
from tests.support.export_processes import Run, running, unread, wait_until_sessions_are_gone
from tests.support.export_runs import Exports, Rows, plain
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import insert
from tests.support.spark_marks import MARKS, first_in_gate

pytestmark = MARKS
FORMATS = pytest.mark.parametrize("form", ["iceberg", "parquet"])
MakeExports = Callable[..., Exports]


class Stage(NamedTuple):
    """Where a run is killed."""

    unread: str
    """What it waits for there: it has written all that comes before it reads this."""
    victims: Callable[[Run], list[int]]
    code: int
    """How the command ends."""
    events: bool
    publications: bool
    messages: int
    """What lies beyond the watermark then; a Parquet warehouse shows the others with messages that are added later."""


STAGES = {
    "after the events": Stage("publication", Run.all, -9, True, False, 0),
    "after the publications": Stage("message", Run.java, 1, True, True, 0),
    "between slices of messages": Stage(f"message_p{3001:015d}", Run.job, 137, True, True, 2),
    "before the watermark": Stage(f"message_p{1:015d}", Run.all, -9, True, True, 4),
}


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """An outbox of partitions of 1,000 ids, with what the first window has: messages that will change."""
    stream = Stream(database, 7)
    narrow_partitions(stream.conn)
    for _ in range(3):
        stream.half()
    stream.delay()
    go_to(stream, 1001)
    stream.send()
    stream.settle()
    yield stream
    stream.close()


def go_to(stream: Stream, id_: int) -> None:
    """Let the next message have this id."""
    stream.conn.execute("SELECT setval('outbox.position', %s, false)", [id_])


def more_happens(stream: Stream) -> None:
    """The second window: old messages change, and new ones come in two slices of 1,000 ids."""
    stream.check()
    stream.decide()
    stream.decide()
    for id_ in (2001, 3001):
        go_to(stream, id_)
        for _ in range(2):
            insert(stream.conn, "t", "k", b"{}")
    stream.settle()


def given(exports: Exports) -> tuple[str, ...]:
    """The options of a process that fills the same warehouse; a read that is held does not hold the others up."""
    settings = exports.settings
    place = ("--warehouse", settings.warehouse, "--format", settings.format)
    return (*place, "--slice-rows", "1000", "--master", "local[8]")


@pytest.mark.feature("H-01")
@FORMATS
@pytest.mark.parametrize("stage", STAGES)
def test_after_a_kill_the_old_state_is_whole_and_the_next_run_gives_the_truth(
    stream: Stream, make_exports: MakeExports, tmp_path: Path, form: str, stage: str
) -> None:
    where, exports = STAGES[stage], make_exports(stream.dsn, format=form)
    exports.run()
    mark, before = exports.target.watermark(), exports.tables()
    assert mark
    more_happens(stream)
    truth = stream.truth()
    with (
        running(stream.dsn, tmp_path / "log", "run", *given(exports)) as run,
        unread(stream.dsn, where.unread) as conn,
    ):
        run.wait_until_it_waits(conn)
        for table, is_there in (("events", where.events), ("publications", where.publications)):
            if is_there:  # they are written beside each other
                run.wait_until_it_says(f" {table} after ")
        assert run.kill(where.victims(run)) == where.code, run.log
    wait_until_sessions_are_gone(stream.conn)
    assert "Traceback" not in run.log

    assert exports.hi == mark.hi
    assert exports.tables(f"window_hi <= {mark.hi}") == before
    beyond = exports.tables(f"window_hi > {mark.hi}")
    for name, is_there in (("transaction_events", where.events), ("publications", where.publications)):
        if form == "iceberg":
            assert bool(beyond[name]) == is_there
        elif not where.messages:
            assert not beyond[name]
    assert len(beyond["message_history"]) == where.messages
    for name, rows in beyond.items():
        assert all(row in truth[name] for row in rows), f"{name} has what never was"

    exports.run()
    assert not differences(exports.tables(), truth)


@pytest.mark.feature("H-01")
@pytest.mark.parametrize("form", first_in_gate("iceberg", "parquet"))
def test_a_first_export_that_dies_goes_on_behind_the_last_slice_that_it_wrote(
    stream: Stream, make_exports: MakeExports, tmp_path: Path, form: str
) -> None:
    exports = make_exports(stream.dsn, format=form)
    more_happens(stream)
    with running(stream.dsn, tmp_path / "log", "run", *given(exports)) as run:
        run.wait_until_it_says("window of transactions")  # (it has searched all messages for foreign xids)
        with unread(stream.dsn, f"message_p{3001:015d}") as conn:
            run.wait_until_it_waits(conn)
            for table in ("events", "publications"):
                run.wait_until_it_says(f" {table} after ")
            assert run.kill(run.all()) == -9, run.log
    wait_until_sessions_are_gone(stream.conn)
    mark = exports.target.watermark()
    assert mark is not None, run.log
    assert mark.part is not None, run.log
    assert (mark.hi, mark.part.below) == (0, 3001), "three slices of a thousand ids"
    there, seen = exports.tables(), commits(exports)
    assert 1001 < max(row[0] for row in there["message_history"]) < 3001

    stream.decide()
    for _ in range(2):
        insert(stream.conn, "t", "k", b"{}")
    changed = len(stream.truth()["message_history"]) - len(there["message_history"])
    exports.run()
    assert not differences(exports.tables(), stream.truth())
    if form == "iceberg":
        written = {name: added - seen[name] for name, added in commits(exports).items()}
        assert written["message_history"] <= changed + 1, (
            "the slice that was missing, and what has changed since"
        )
        assert written["transaction_events"] == 1, "the decision"
        assert written["publications"] == 0
    mark = exports.target.watermark()
    assert mark is not None
    assert mark.part is None


def commits(exports: Exports) -> dict[str, int]:
    """How many rows all commits have added to each table."""
    if exports.settings.format != "iceberg":
        return {}
    return {
        table.name: exports.spark.sql(
            "SELECT coalesce(sum(CAST(summary['added-records'] AS BIGINT)), 0) AS added "
            f"FROM outbox.outbox.{table.name}.snapshots"
        ).collect()[0]["added"]
        for table in CORE
    }


@FORMATS
def test_marts_of_a_run_that_was_killed_after_its_watermark_are_made_by_the_next(
    stream: Stream, make_exports: MakeExports, tmp_path: Path, form: str
) -> None:
    exports, undisturbed = (
        make_exports(stream.dsn, format=form),
        make_exports(stream.dsn, "other", format=form),
    )
    more_happens(stream)
    with running(stream.dsn, tmp_path / "log", "run", *given(exports)) as run:
        run.wait_until_it_says("; done after")
        run.kill(run.all())
    wait_until_sessions_are_gone(stream.conn)
    assert not differences(exports.tables(), stream.truth())
    for each in (exports, undisturbed):
        each.run()
        refresh(each.spark, each.settings, each.target, each.said.append)
    assert marts(exports) == marts(undisturbed)


def marts(exports: Exports) -> dict[str, Rows]:
    """All marts; not `window_hi` of mart_days, which says when they were made."""
    return {
        table.name: plain(exports.target.read(table).drop("window_hi").collect()) for table in (*MARTS, DAYS)
    }
