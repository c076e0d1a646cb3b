"""Two runs at once leave one history: the lock refuses the second, and where the lock is lost, the commits hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outbox_etl.source.reader import Source
from tests.support.export_processes import running, unread
from tests.support.export_runs import Exports
from tests.support.lost_locks import BREAK_LOCKS, is_refusal
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import connect
from tests.support.spark_marks import MARKS

pytestmark = MARKS
FORMATS = pytest.mark.parametrize("form", ["iceberg", "parquet"])


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """Enough history that every table of the first window has rows."""
    stream = Stream(database, 5)
    stream.half()
    stream.check()
    for _ in range(30):
        stream.step()
    stream.publish()
    yield stream
    stream.close()


def test_a_run_that_has_ended_lets_the_next_one_begin_at_once(
    stream: Stream, make_exports: Callable[..., Exports]
) -> None:
    """As quickly as one process can: PostgreSQL ends a closed session, and frees its locks, in its own time."""
    exports = make_exports(stream.dsn)
    source = Source(exports.spark, exports.settings)
    for _ in range(100):
        with source.lock(exports.settings.target):
            pass


@FORMATS
def test_a_second_process_is_refused_by_name_and_the_first_does_the_work(
    stream: Stream, make_exports: Callable[..., Exports], tmp_path: Path, form: str
) -> None:
    stream.settle()
    exports = make_exports(stream.dsn, format=form)
    given = ("--warehouse", exports.settings.warehouse, "--format", form)
    with running(stream.dsn, tmp_path / "first", "run", *given) as first:
        with unread(stream.dsn, "message") as conn:
            first.wait_until_it_waits(conn)
            with running(stream.dsn, tmp_path / "second", "run", *given) as second:
                assert second.code() == 1, second.log
            assert f"another run is writing {exports.settings.target}" in second.log
            assert "Traceback" not in second.log
        assert first.code() == 0, first.log
    assert not differences(exports.tables(), stream.truth())


@FORMATS
def test_a_run_that_lost_its_lock_and_was_overtaken_is_refused_without_duplicates(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    slow, fast = (make_exports(stream.dsn, "same", format=form) for _ in range(2))
    slow.run()

    def overtake() -> None:
        with connect(stream.dsn) as conn:
            assert conn.execute(BREAK_LOCKS).fetchall() == [(True,)]
        stream.send()
        stream.publish()
        fast.run()

    for at in range(4):  # before the commits of events, publications, new messages and older messages
        for _ in range(10):
            stream.step()
        stream.half()
        stream.decide()
        stream.check()
        stream.send()
        stream.settle()  # so that the window ends here
        refused = pytest.raises(Exception, check=is_refusal)  # (Java's, or our own: both are told alike)
        with refused:
            slow.run(meanwhile=overtake, at=at)
        assert len([line for line in fast.said if "done after" in line]) == at + 1
        assert not differences(fast.tables(), stream.truth())
    stream.settle()
    slow.run()
    assert not differences(slow.tables(), stream.truth())
