"""A time has the same microseconds since 1970 in the warehouse as in PostgreSQL, wherever the job runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from outbox_etl.session import start
from tests.support.export_runs import Exports, base_settings
from tests.support.message_streams import Stream
from tests.support.spark_marks import MARKS
from tests.support.warehouse_readers import iceberg_arrow

pytestmark = MARKS
TIMES = [
    "0001-01-01 00:00:00+00",
    "0001-03-01 12:34:56.789012+00",
    "1582-10-04 23:59:59.999999+00",
    "1582-10-15 00:00:00+00",
    "1883-11-18 16:59:59.5+00",
    "1899-12-31 23:59:59.999999+00",
    "1900-01-01 00:00:00+00",
    "1969-12-31 23:59:59.999999+00",
    "2026-03-29 01:30:00+00",
    "9999-12-30 23:59:59.999999+00",
]


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Amsterdam"])
def test_old_times_do_not_depend_on_the_zone_of_the_job_s_machine(
    small_spark: SparkSession,
    stream: Stream,
    make_exports: Callable[..., Exports],
    tmp_path: Path,
    zone: str,
) -> None:
    jvm: Any = small_spark._jvm
    jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone(zone))
    start(base_settings(tmp_path / "base"))
    for time in TIMES:
        stream.conn.execute(
            "INSERT INTO outbox.message (topic, body, deliver_at) VALUES ('t', 'x', %s::timestamptz)", [time]
        )
    ours = stream.conn.execute(
        "SELECT (extract(epoch FROM deliver_at) * 1000000)::bigint FROM outbox.message ORDER BY id"
    ).fetchall()
    exports = make_exports(stream.dsn)
    exports.run()
    read = iceberg_arrow(tmp_path / "warehouse", "message_history").sort_by("id")
    theirs = read["deliver_at"].cast(pa.int64()).to_pylist()
    assert theirs == [row[0] for row in ours]
