"""Spark jobs beside the export, each run in a process of its own with the export's session settings.

`python -m bench.load.spark_jobs` takes one JSON object from standard input: `job` and the arguments of `Settings`. It
writes a line of JSON. `single` is the job that everybody writes first: one JDBC connection, the same tables, Parquet.
`parts` measures in one warm session what a task of the export does: reading, preparing, rewriting files.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import Settings
from outbox_etl.session import DRIVER, start
from outbox_etl.source.reader import SQL, Ids, Source
from outbox_etl.source.window import following
from outbox_etl.statements import statement
from outbox_etl.warehouse import rows
from outbox_etl.warehouse.opening import open_target
from outbox_etl.warehouse.tables import MESSAGE_HISTORY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FETCH_SIZE = "5000"
"""As the export's. The driver's own default reads the whole table into memory and fails on a large one."""


def main() -> None:
    """Run one job; its seconds are those of the job itself, without Spark's start."""
    given = json.loads(sys.stdin.read())
    settings = Settings(
        parse(given["dsn"]),
        given["warehouse"],
        master=given["master"],
        jars=tuple(given["jars"].split(",")),
        driver_memory=given["driver_memory"],
    )
    spark = start(settings, app="outbox-bench")
    try:
        job = {"single": single, "parts": parts}[given["job"]]
        answer = job(spark, settings, Path(given["output"]))
    finally:
        spark.stop()
    sys.stdout.write(f"{json.dumps(answer)}\n")


def single(spark: SparkSession, settings: Settings, output: Path) -> dict[str, Any]:
    """Read messages, events and publications, one after the other through one connection, write Parquet."""
    began = time.monotonic()
    source = settings.source
    properties = {"driver": DRIVER, "user": source.user, "password": source.password, "fetchsize": FETCH_SIZE}
    places = {table: (output / table).as_uri() for table in ("message", "event", "publication")}
    for table, place in places.items():
        frame = spark.read.jdbc(
            source.url, f"({statement(SQL, f'{table}_columns')}) q", properties=properties
        )
        frame.write.mode("overwrite").parquet(place)
    seconds = time.monotonic() - began
    return {"seconds": seconds, "messages": spark.read.parquet(places["message"]).count(), **_files(output)}


def parts(spark: SparkSession, settings: Settings, output: Path) -> dict[str, Any]:
    """What tasks do, one after the other on all cores; the JVM is warm, as an executor's is after its first task."""
    source = Source(spark, settings)
    window = following(None, source.horizon())
    ids = Ids(0, window.top + 1)
    cores = spark.sparkContext.defaultParallelism
    read = source.messages(window, ids)
    history = open_target(spark, settings).read(MESSAGE_HISTORY)
    _drain(rows.messages(read, window.hi))
    found = {
        "cores": cores,
        "messages": history.count(),
        "read_one": _drain(read.coalesce(1)),
        "read_all": _drain(read),
        "prepare_all": _drain(rows.messages(read, window.hi)),
        "scan_all": _drain(history),
    }
    began = time.monotonic()
    history.write.option("compression", "zstd").mode("overwrite").parquet(output.as_uri())
    return {**found, "rewrite_all": time.monotonic() - began, **_files(output)}


def _drain(frame: DataFrame) -> float:
    """Compute every row, keep none; seconds."""
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def _files(output: Path) -> dict[str, int]:
    found = list(output.rglob("*.parquet"))
    return {"files": len(found), "bytes": sum(file.stat().st_size for file in found)}


if __name__ == "__main__":
    main()
