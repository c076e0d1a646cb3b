"""New messages that tasks read and write as Arrow: the same rows as Spark's, whatever is in them, or Spark's rows."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.sql import Row

from outbox_etl.arrow import here, task
from outbox_etl.arrow.new_messages import NewMessages
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.bare_reader import narrow_partitions
from tests.support.export_processes import below, command_line
from tests.support.export_runs import Exports
from tests.support.json_bodies import JSON, OTHER, UNUSUAL
from tests.support.locks import holding, wait_for_waiting
from tests.support.message_streams import Stream, differences
from tests.support.plain_inserts import Connection, connect
from tests.support.spark_marks import MARKS
from tests.support.warehouse_readers import iceberg_arrow

pytestmark = [*MARKS, pytest.mark.gate]
INSERT = """
    INSERT INTO outbox.message (topic, key, body, headers, tags, index_keys, deliver_at, born_at)
    VALUES (%s, %s, %s, %s::jsonb, %s, %s, %s::timestamptz, coalesce(%s::timestamptz, now()))
"""
WINDOW_HI = 1 + MESSAGE_HISTORY.names.index("window_hi")
"""Its number; the two runs have windows of their own."""
REFUSED = "parts are read row by row"


def send(conn: Connection, body: bytes | None, **given: Any) -> None:
    values = {"headers": None, "tags": [], "index_keys": [], "deliver_at": None, "born_at": None} | given
    conn.execute(INSERT.encode(), ("t", b"\xff\x00", body, *values.values()))


def data_files(exports: Exports) -> list[str]:
    """Names of the data files, sorted."""
    place = Path(exports.settings.warehouse) / "outbox/message_history/data"
    return sorted(path.name for path in place.rglob("*.parquet"))


def by_spark(dsn: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch) -> Exports:
    """The same export by Spark's own rows."""
    with monkeypatch.context() as patch:
        patch.setattr(here, "PACKAGES", ("a_package_that_is_missing",))
        exports = make_exports(dsn, "by-spark")
        exports.run()
    return exports


def test_arrow_writes_the_rows_of_spark(
    database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database) as conn:
        for body in (*JSON, *OTHER, None):
            send(conn, body)
        send(
            conn,
            b"{}",
            headers='{"a": "\\u00fc\\"\\n", "b": "", "c": null}',
            tags=["x", "ü,{}"],
            index_keys=[],
        )
        send(conn, b"", headers="{}", tags=[], deliver_at="2999-12-31 23:59:59.999999+00")
        send(conn, b"{}", born_at="2026-01-31 23:59:59.999999+00")
        send(conn, b"{}", born_at="1969-12-31 23:59:59.999999+00")
    arrow = make_exports(database, "arrow")
    arrow.run()
    spark = by_spark(database, make_exports, monkeypatch)
    assert arrow.rows(MESSAGE_HISTORY) == spark.rows(MESSAGE_HISTORY)
    assert len(arrow.rows(MESSAGE_HISTORY)) == len(JSON) + len(OTHER) + 5
    assert [line for line in arrow.said if REFUSED in line] == []
    assert not any(name.startswith("00000-") for name in data_files(arrow))
    data = Path(arrow.settings.warehouse, "outbox", "message_history", "data")
    assert all(path.with_name(f".{path.name}.crc").is_file() for path in data.rglob("*.parquet"))
    assert all(name.startswith("00000-") for name in data_files(spark))
    name = "outbox.outbox.message_history"
    measures = (
        "partition, record_count, file_format, lower_bounds, upper_bounds, null_value_counts, value_counts"
    )
    found = [
        exports.spark.sql(f"SELECT {measures} FROM {name}.files ORDER BY partition").collect()
        for exports in (arrow, spark)
    ]
    assert _different(*found) == []
    people = iceberg_arrow(Path(arrow.settings.warehouse), "message_history").to_pylist()
    assert [row["tags"] for row in people if row["headers"]] == [["x", "ü,{}"]]


def _different(ours: list[Row], theirs: list[Row]) -> list[tuple[object, ...]]:
    """The measures of files that differ, by the field's number."""
    return [
        (name, number, day[name].get(number), other[name].get(number))
        for day, other in zip(ours, theirs, strict=True)
        for name in ("lower_bounds", "upper_bounds", "null_value_counts", "value_counts")
        for number in {**day[name], **other[name]}
        if day[name].get(number) != other[name].get(number) and number != WINDOW_HI
    ]


def test_arrow_brings_publications_and_checks(
    database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(database, 3)
    for _ in range(40):
        stream.step()
    stream.settle()
    truth = stream.truth()
    stream.close()
    arrow = make_exports(database, "arrow")
    arrow.run()
    assert not differences(arrow.tables(), truth)
    assert arrow.tables() == by_spark(database, make_exports, monkeypatch).tables()
    assert [line for line in arrow.said if REFUSED in line] == []


@pytest.mark.parametrize(
    ("given", "unusual"),
    [
        ({"body": UNUSUAL[0]}, [1_500]),
        ({"body": UNUSUAL[5]}, [1_500]),
        ({"body": UNUSUAL[0]}, [1_500, 2_500]),
        ({"body": b"{}", "deliver_at": "1899-12-31 00:00:00+00"}, [1]),
        ({"body": b"{}", "headers": f'{{"{"n" * 60_000}": ""}}'}, [2_500]),
    ],
    ids=["levels", "size", "two", "calendar", "header"],
)
def test_parts_with_something_unusual_are_read_by_spark_in_one_commit(
    database: str,
    make_exports: Callable[..., Exports],
    monkeypatch: pytest.MonkeyPatch,
    given: dict[str, Any],
    unusual: list[int],
) -> None:
    with connect(database) as conn:
        narrow_partitions(conn, width=1_000, count=3)
        for value in (1, 1_500, 2_500):
            conn.execute("SELECT setval('outbox.position', %s)", (value,))
            send(conn, **(given if value in unusual else {"body": b"{}"}))
    exports = make_exports(database, "arrow")
    exports.run()
    assert [line.split(":")[0] for line in exports.said if REFUSED in line] == [
        f"{len(unusual)} of 3 {REFUSED}"
    ]
    by = by_spark(database, make_exports, monkeypatch)
    assert exports.rows(MESSAGE_HISTORY) == by.rows(MESSAGE_HISTORY)
    assert len(exports.rows(MESSAGE_HISTORY)) == 3
    names = data_files(exports)
    assert len([name for name in names if name[5] == "-"]) == len(unusual)
    assert len(names) == 3
    files = "SELECT * FROM outbox.outbox.message_history.snapshots WHERE summary['added-data-files'] > 0"
    assert exports.spark.sql(files).count() == 2


def test_a_run_that_dies_between_the_two_commits_is_completed(
    database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database) as conn:
        narrow_partitions(conn, width=1_000, count=3)
        for value in (1, 1_500, 2_500):
            conn.execute("SELECT setval('outbox.position', %s)", (value,))
            send(conn, UNUSUAL[0] if value == 1_500 else b"{}")
    exports = make_exports(database, "arrow")
    with monkeypatch.context() as patch:
        patch.setattr(NewMessages, "rows", _killed_at_a_part(NewMessages.rows))
        with pytest.raises(RuntimeError, match="killed here"):
            exports.run()
    assert len(exports.rows(MESSAGE_HISTORY)) == 2
    mark = exports.target.watermark()
    assert mark is not None
    assert mark.hi == 0
    exports.run()
    assert exports.rows(MESSAGE_HISTORY) == by_spark(database, make_exports, monkeypatch).rows(
        MESSAGE_HISTORY
    )


def _killed_at_a_part(rows: Callable[..., object]) -> Callable[..., object]:
    def killed(self: NewMessages, ranges: list[object]) -> object:
        if len(ranges) == 1:
            raise RuntimeError("killed here")
        return rows(self, ranges)

    return killed


@pytest.mark.parametrize(("body", "step"), [(b"{}", "_work"), (UNUSUAL[0], "_work"), (b"{}", "__init__")])
def test_another_run_that_wrote_meanwhile_stops_the_commit(
    database: str,
    make_exports: Callable[..., Exports],
    monkeypatch: pytest.MonkeyPatch,
    body: bytes,
    step: str,
) -> None:
    """Whether the part is written as Arrow or, refused by its task, by Spark; while tasks work, or before."""
    with connect(database) as conn:
        send(conn, body)
    exports = make_exports(database, "arrow")

    def and_another_run(*given: Any) -> Any:
        found = kept(*given)
        exports.spark.sql(
            "INSERT INTO outbox.outbox.message_history (id, message_id, topic, born_at, window_hi) "
            "VALUES (1, 'm', 't', now(), 1)"
        )
        return found

    kept = getattr(NewMessages, step)
    monkeypatch.setattr(NewMessages, step, and_another_run)
    with pytest.raises(Exception, match="conflicting"):
        exports.run()
    assert [row[1] for row in exports.rows(MESSAGE_HISTORY)] == ["m"]


def send_to_two_tasks(dsn: str) -> None:
    """Messages in two ranges: what lies in one is read by the driver itself."""
    with connect(dsn) as conn:
        narrow_partitions(conn, width=1_000, count=2)
        for value in (1, 1_500):
            conn.execute("SELECT setval('outbox.position', %s)", (value,))
            send(conn, b"{}")


def test_workers_that_are_killed_cost_a_read(
    database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to_two_tasks(database)
    exports = make_exports(database, "arrow")
    kept = NewMessages._work
    killed: list[int] = []

    def work(*given: Any) -> list[task.Written]:
        def kill() -> None:
            with holding(database, "LOCK outbox.message IN ACCESS EXCLUSIVE MODE"), connect(database) as conn:
                locked.set()
                wait_for_waiting(conn, "%q.message_id::text%")
                killed.extend(kill_workers())

        locked = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            killing = threads.submit(kill)
            assert locked.wait(30)
            try:
                return kept(*given)
            finally:
                killing.result()

    monkeypatch.setattr(NewMessages, "_work", work)
    exports.run()
    assert killed
    assert len(exports.rows(MESSAGE_HISTORY)) == 2
    assert [line for line in exports.said if REFUSED in line] == [f"2 of 2 {REFUSED}: Py4JJavaError"]
    assert [
        name for name in data_files(exports) if name[5] != "-"
    ] == []  # (a task of Spark gives such a name)


def test_files_of_a_job_that_failed_are_removed(
    database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database) as conn:
        send(conn, b"{}")
    exports = make_exports(database, "arrow")

    kept = NewMessages._work

    def and_fail(*given: Any) -> list[task.Written]:
        kept(*given)
        assert len(data_files(exports)) == 1
        raise RuntimeError("one of the tasks failed")

    monkeypatch.setattr(NewMessages, "_work", and_fail)
    exports.run()
    assert [line for line in exports.said if REFUSED in line] == [f"1 of 1 {REFUSED}: RuntimeError"]
    assert [name.startswith("00000-") for name in data_files(exports)] == [True]
    assert len(exports.rows(MESSAGE_HISTORY)) == 1


def kill_workers() -> list[int]:
    """Kill this process's Python workers of Spark, as the kernel does when memory is short; return their numbers."""
    found = [pid for pid in below(os.getpid()) if b"pyspark.daemon" in command_line(pid)]
    workers = [pid for pid in found if not below(pid)]
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    return workers


def test_the_password_is_in_no_file(
    database: str, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    send_to_two_tasks(database)
    password = (urlsplit(database).password or "").encode()
    exports = make_exports(database, "arrow")
    kept, seen = os.unlink, []

    def unlink(path: str, *given: Any, **named: Any) -> None:
        seen.append(Path(path).read_bytes())
        kept(path, *given, **named)

    monkeypatch.setattr("pyspark.core.context.os.unlink", unlink)
    exports.run()
    assert [name for name in data_files(exports) if name.startswith("00000-")] == []
    assert any(
        b"FROM outbox.message" in content for content in seen
    )  # (what Spark keeps in a file for a moment)
    temporary = Path(str(exports.spark.sparkContext._temp_dir)).parent
    files = [path.read_bytes() for path in temporary.rglob("*") if path.is_file()]
    files += [path.read_bytes() for path in Path(exports.settings.warehouse).rglob("*") if path.is_file()]
    assert len(password) > 5
    assert not any(password in content for content in [*seen, *files])


def test_a_table_whose_files_are_made_in_another_way_is_left_to_spark(
    database: str, make_exports: Callable[..., Exports]
) -> None:
    exports = make_exports(database, "arrow")
    exports.run()
    with connect(database) as conn:
        send(conn, b"{}")
    exports.spark.sql(
        "ALTER TABLE outbox.outbox.message_history SET TBLPROPERTIES ('write.parquet.compression-codec' = 'gzip')"
    )
    exports.run()
    assert [name for name in data_files(exports) if not name.startswith("00000-")] == []
