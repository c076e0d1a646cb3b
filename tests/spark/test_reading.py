"""What an export costs its source: each message is read once, in binary, and dropped history costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from outbox_etl.errors import ConcurrentRunError
from outbox_etl.source.reader import Source
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.bare_reader import narrow_partitions
from tests.support.export_runs import Exports
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import connect, insert
from tests.support.spark_marks import MARKS
from tests.support.waiting import wait_until

pytestmark = MARKS
READ = """
    SELECT sum(s.seq_tup_read + coalesce(s.idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables s
    WHERE s.schemaname = 'outbox' AND s.relname LIKE 'message\\_p%'
"""


@pytest.fixture
def stream(database: str) -> Iterator[Stream]:
    """Some history, all of it published."""
    stream = Stream(database, 5)
    for _ in range(40):
        stream.step()
    stream.settle()
    yield stream
    stream.close()


def read(dsn: str) -> int:
    """Messages that PostgreSQL has read so far, as its statistics say."""
    with connect(dsn) as conn:
        row = conn.execute(READ).fetchone()
    return int(row[0]) if row else 0


@pytest.mark.parametrize("form", ["iceberg", "parquet"])
def test_an_export_reads_each_message_once(
    stream: Stream, make_exports: Callable[..., Exports], form: str
) -> None:
    truth = stream.truth()
    stream.close()  # (it tells what it has read when it ends)
    warehouse = make_exports(stream.dsn, format=form)
    before = settled(stream.dsn)
    warehouse.run()
    written = len(warehouse.rows(MESSAGE_HISTORY))
    wait_until(lambda: read(stream.dsn) >= before + written, "the statistics of what was read")
    assert settled(stream.dsn) < before + 2 * written
    assert not differences(warehouse.tables(), truth)


def settled(dsn: str) -> int:
    """What `read` answers when every other session of the database has ended, and so has told."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def alone() -> bool:
        with connect(dsn) as conn:
            row = conn.execute(others).fetchone()
        return row is not None and row[0] == 0

    wait_until(alone, "the end of all other sessions")
    return read(dsn)


def test_rows_travel_in_binary(database: str, make_exports: Callable[..., Exports]) -> None:
    warehouse = make_exports(database)
    source = Source(warehouse.spark, warehouse.settings)
    with source.connection() as connection:
        asked = connection.prepareStatement("SELECT body, born_at, message_id, tags FROM outbox.message")
        formats = asked.executeQuery().getMetaData()
        assert [formats.getFormat(n + 1) for n in range(4)] == [1, 1, 1, 1]


def test_ids_of_dropped_history_cost_no_commit(database: str, make_exports: Callable[..., Exports]) -> None:
    with connect(database) as conn:
        narrow_partitions(conn, width=1_000, count=4)
        conn.execute("SELECT setval('outbox.position', 2500)")
        insert(conn, "orders", b"k", b"{}")
        for table in ("message", "event", "publication"):
            for lower in (1, 1_001):
                conn.execute(f"DROP TABLE outbox.{table}_p{lower:015d}")
    warehouse = make_exports(database, slice_rows=10)
    warehouse.run()
    assert len(warehouse.rows(MESSAGE_HISTORY)) == 1
    commits = [line for line in warehouse.said if "new messages" in line]
    assert len(commits) <= 51


def test_a_watermark_alone_is_refused_when_another_run_wrote_in_between(
    stream: Stream, make_exports: Callable[..., Exports]
) -> None:
    stream.send()
    stream.publish()
    warehouse = make_exports(stream.dsn)
    warehouse.run()
    before = warehouse.target.watermark()
    stream.publish_again()

    def another() -> None:
        name = "outbox.outbox.message_history"
        warehouse.spark.sql(f"INSERT INTO {name} SELECT * FROM {name} LIMIT 1")

    with pytest.raises(ConcurrentRunError, match="another run, or maintenance, changed"):
        warehouse.run(meanwhile=another, at=2)
    assert warehouse.target.watermark() == before
