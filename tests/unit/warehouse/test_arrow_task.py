"""What a task makes of a range: columns of message_history, files by day, or nothing and the reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox_etl.arrow import task
from outbox_etl.warehouse.tables import EARLIEST, LATEST
from tests.support.json_bodies import JSON, OTHER, UNUSUAL

SCHEMA = pa.schema([("id", pa.int64()), ("born_at", pa.timestamp("us", "UTC"))])
DAY = 86_400_000_000


def order(place: Path, *, file_bytes: int = 1 << 30) -> task.Order:
    schema = bytes(SCHEMA.serialize())
    return task.Order((), "", 7, str(place), "run", schema, "born_at", file_bytes)


def batch(*times: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array(range(len(times)), pa.int64()), pa.array(times, pa.timestamp("us", "UTC"))], schema=SCHEMA
    )


def test_bodies_are_json_or_not() -> None:
    found = task.json_of(pa.array([*JSON, None, *OTHER], pa.binary())).to_pylist()
    expected = [body.decode() for body in JSON] + [None] * (1 + len(OTHER))
    assert [(n, got) for n, (got, due) in enumerate(zip(found, expected, strict=True)) if got != due] == []


@pytest.mark.parametrize("number", range(len(UNUSUAL)))
def test_a_body_near_a_limit_of_spark_is_not_judged(number: int) -> None:
    with pytest.raises(task.UnsureError):
        task.json_of(pa.array([b"{}", UNUSUAL[number]], pa.binary()))


def test_headers_are_maps_and_nothing_else() -> None:
    given = ['{"a": "b", "c": null}', None, "{}", '{"a": "b", "c": null}']
    found = task.headers_of(pa.array(given)).to_pylist()
    assert found == [[("a", "b"), ("c", None)], None, [], [("a", "b"), ("c", None)]]
    many, long = json.dumps(dict.fromkeys(map(str, range(200)), "")), json.dumps({"n" * 60_000: ""})
    for text in ("[]", '{"a": 1}', '{"a": {}}', many, long):
        with pytest.raises(task.UnsureError):
            task.headers_of(pa.array([text]))


def test_rows_go_to_files_of_their_days(tmp_path: Path) -> None:
    files = task.Files(order(tmp_path))
    files.add(batch(0, DAY - 1, DAY, -1))
    files.add(batch(5 * DAY))
    files.close()
    found = {Path(path).parent.name: pq.read_table(path)["born_at"].to_pylist() for path, _, _ in files.ended}
    assert {name: len(times) for name, times in found.items()} == {
        "born_at_day=1970-01-01": 2,
        "born_at_day=1970-01-02": 1,
        "born_at_day=1969-12-31": 1,
        "born_at_day=1970-01-06": 1,
    }
    assert found["born_at_day=1970-01-06"] == [datetime(1970, 1, 6, tzinfo=UTC)]
    assert sorted(day for _, day, _ in files.ended) == [-1, 0, 1, 5]
    assert all(size == Path(path).stat().st_size for path, _, size in files.ended)


def test_a_file_that_is_large_enough_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "ROW_GROUP", 1)
    files = task.Files(order(tmp_path, file_bytes=1))
    for _ in range(3):
        files.add(batch(0, 1))
    files.close()
    assert len({path for path, _, _ in files.ended}) == 3
    assert sum(pq.read_metadata(path).num_rows for path, _, _ in files.ended) == 6


def test_nothing_is_left_of_a_range_that_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "ROW_GROUP", 1)
    files = task.Files(order(tmp_path, file_bytes=1))
    files.add(batch(0))
    files.close()
    open_files = task.Files(order(tmp_path))
    open_files.add(batch(0, DAY))
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 4
    for each in (files, open_files):
        each.discard()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_read_that_fails_is_returned_with_its_reason(tmp_path: Path) -> None:
    files, reason = task.work("host=127.0.0.1 port=1 user=x password='secret'", order(tmp_path))
    assert files == []
    assert "port 1 failed" in reason
    assert "secret" not in reason


def test_a_value_is_in_no_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> list[object]:
        raise ValueError("a body that nobody may see")

    monkeypatch.setattr(task, "read", read)
    assert task.work("", order(tmp_path)) == ([], "ValueError")


@pytest.mark.parametrize("time", [2**63 - 1 - 946_684_800_000_000, EARLIEST - 1, LATEST + 1])
def test_times_that_no_calendar_has_are_not_written(time: int) -> None:
    with pytest.raises(task.UnsureError, match="born_at"):
        task.need_years("born_at", pa.array([0, time], pa.int64()))
