"""A PostgreSQL whose disks were brought back to an older state: the same cluster and timeline, another history."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from outbox_etl.errors import OtherClusterError
from outbox_local.stack.api import Stack
from tests.support.export_runs import Exports
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import value
from tests.support.spark_marks import MARKS

pytestmark = MARKS
NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"


def pass_transactions(conn: Connection, end: int) -> None:
    """Let transactions pass that write next to nothing."""
    while value(conn, NEXT) <= end:
        with conn.transaction(force_rollback=True):
            conn.execute("SELECT pg_current_xact_id()")


def test_an_older_cluster_is_refused_though_its_transactions_passed_the_watermark(
    private_stack: Stack, private_database: str, make_exports: Callable[..., Exports]
) -> None:
    warehouse = make_exports(private_database, format="parquet")
    stream = Stream(private_database, 3)
    stream.send()
    data = Path(value(stream.conn, "SHOW data_directory"))
    stream.close()
    snapshot = data.with_name("snapshot")
    private_stack.stop_postgres()
    shutil.copytree(data, snapshot, symlinks=True)
    for path in (snapshot, *snapshot.rglob("*")):
        os.chown(path, data.stat().st_uid, data.stat().st_gid, follow_symlinks=False)
    private_stack.start_postgres()
    with connect(private_database) as conn:
        insert(conn, "t", "lost", os.urandom(200_000))
    warehouse.run()
    mark = warehouse.target.watermark()
    assert mark is not None
    private_stack.stop_postgres()
    shutil.rmtree(data)
    snapshot.rename(data)
    private_stack.start_postgres()
    stream = Stream(private_database, 4)
    stream.send()
    pass_transactions(stream.conn, mark.hi)
    stream.send()
    with pytest.raises(OtherClusterError, match=r"log was \d+ bytes .* --rebase"):
        warehouse.run()
    assert warehouse.target.watermark() == mark
    warehouse.backfill(rebase=True)
    stream.settle()
    warehouse.run()
    found = warehouse.tables()
    lost = [row for row in found["message_history"] if "LOST" in row]
    assert [row[3] for row in lost] == [b"lost"]
    found["message_history"] = [row for row in found["message_history"] if row not in lost]
    assert not differences(found, stream.truth())
    stream.close()
