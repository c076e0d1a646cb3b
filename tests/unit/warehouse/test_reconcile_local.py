"""DuckDB's slim rows: what differs in one column has another hash, and digests are those of Kafka's records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from outbox_etl.arrow.task import UnsureError
from outbox_etl.reconcile import slim as rows_of
from outbox_etl.reconcile.kafka import digest
from outbox_etl.reconcile.sources import APART, NOT_COMPARED, PUBLICATION_COLUMNS, SOUND
from outbox_etl.statements import statement
from outbox_etl.warehouse.duck import Duck
from outbox_etl.warehouse.tables import MESSAGE_HISTORY, PUBLICATIONS, TRANSACTION_EVENTS

KINDS = {
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
OTHER = {
    "bigint": 7,
    "int": 7,
    "string": "x",
    "binary": b"x",
    "timestamp": datetime(2026, 1, 1, tzinfo=UTC),
    "array<string>": ["x"],
}
"""A value of each type that is not null."""
READ = [column for column in MESSAGE_HISTORY.columns if column.name not in APART or column.name == "headers"]


@pytest.fixture
def duck() -> Iterator[Duck]:
    with closing(Duck(1)) as duck:
        yield duck


def slim(duck: Duck, place: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    """The slim rows of messages with these columns; all other columns are null."""
    arrays = [pa.array([row.get(column.name) for row in rows], KINDS[column.type]) for column in READ]
    table = pa.table(arrays, [column.name for column in READ])
    path = str(place / "slim.parquet")
    assert duck.save(rows_of.messages("batches"), path, table.to_reader()) == len(rows)
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def test_every_column_counts(duck: Duck, tmp_path: Path) -> None:
    alone = [{column.name: OTHER[column.type]} for column in READ if column.name != "headers"]
    hashes = [row["hash"] for row in slim(duck, tmp_path, {}, *alone)]
    assert len(set(hashes)) == len(alone) + 1


def judged(duck: Duck, place: Path, **columns: Any) -> int:
    """The hash of a row of the warehouse with these columns."""
    row = {"state": "COMMITTED", "status": "PUBLISHED", **columns}
    arrays = [
        pa.array([row.get(column.name)], KINDS[column.type])
        for column in MESSAGE_HISTORY.columns
        if column.type in KINDS
    ]
    names = [column.name for column in MESSAGE_HISTORY.columns if column.type in KINDS]
    path = str(place / "judged.parquet")
    assert duck.save(rows_of.messages("batches", ", status"), path, pa.table(arrays, names).to_reader()) == 1
    return int(pq.read_table(path)["hash"][0].as_py())


AGREE: list[dict[str, Any]] = [
    {"status": "COMMITTED"},
    {"status": "LOST"},
    {"body": b'{"n": 1}', "body_json": '{"n": 1}'},
    {"body": b"\xff"},
    {"state": "ROLLED_BACK", "status": "ROLLED_BACK"},
    {"state": "ROLLED_BACK", "status": "LOST"},
]
DISAGREE: list[dict[str, Any]] = [
    {"status": "ROLLED_BACK"},
    {"status": None},
    {"body": b'{"n": 1}', "body_json": '{"n": 0}'},
    {"body_json": "1"},
    {"state": "ROLLED_BACK", "status": "PUBLISHED"},
    {"state": "ROLLED_BACK", "status": "ROLLED_BACK", "published_at": OTHER["timestamp"]},
    {"state": "DEAD", "status": "DEAD", "offset": 7},
]


@pytest.mark.parametrize("columns", AGREE)
def test_a_row_that_agrees_with_itself_has_the_hash_of_postgresql(
    duck: Duck, tmp_path: Path, columns: dict[str, Any]
) -> None:
    own = {name: value for name, value in columns.items() if name in {"body"}}
    [ours] = slim(duck, tmp_path, {"state": columns.get("state", "COMMITTED"), **own})
    assert judged(duck, tmp_path, **columns) == ours["hash"]


@pytest.mark.parametrize("columns", DISAGREE)
def test_a_row_that_contradicts_itself_has_a_hash_that_postgresql_never_has(
    duck: Duck, tmp_path: Path, columns: dict[str, Any]
) -> None:
    assert judged(duck, tmp_path, **columns) < 0


def test_no_column_of_a_core_table_is_left_out() -> None:
    suspects = statement(rows_of.SQL, "suspects", inside="", hi=0, low=0, high=0, published="")
    by_themselves = {name for name in APART if name in SOUND}
    by_first_publication = {name for name in ("published_at", "partition", "offset") if name in suspects}
    hashed = {column.name for column in READ}
    assert {*hashed, *by_themselves, *by_first_publication, *NOT_COMPARED} == set(MESSAGE_HISTORY.names)
    assert {*PUBLICATION_COLUMNS, "window_hi"} == set(PUBLICATIONS.names)
    events = rows_of.events("events")
    assert [name for name in TRANSACTION_EVENTS.names if f'"{name}"' not in events] == ["window_hi"]


ALIKE: list[dict[str, Any]] = [
    {},
    {"tags": []},
    {"tags": [""]},
    {"tags": [None]},
    {"tags": ["a"]},
    {"tags": ["a", "b"]},
    {"tags": ["a", None]},
    {"tags": [None, "a"]},
    {"tags": ["a"], "index_keys": ["b"]},
    {"tags": ["a", "b"], "index_keys": []},
    {"tags": [], "index_keys": ["a", "b"]},
    {"index_keys": ["a", "b"]},
    {"headers": []},
    {"headers": [("a", None)]},
    {"headers": [("a", "")]},
    {"headers": [("a", "1"), ("b", None)]},
    {"headers": [("a", None), ("b", "1")]},
    {"headers": [("a1", "b"), ("c", "")]},
    {"headers": [("a", "1b"), ("c", "")]},
    {"headers": [("a", "b")]},
    {"tags": ["a", "b"], "headers": []},
    {"transaction_id": ""},
    {"transaction_id": "\0"},
    {"checker": ""},
    {"biz_type": "a", "biz_id": "b"},
    {"biz_type": "ab", "biz_id": ""},
    {"key": b""},
    {"key": b"a"},
    {"body": b""},
    {"body": b"a"},
    {"key": b"a", "body": b"b"},
    {"key": b"ab", "body": b""},
    {"key": b"\xff\x00", "body": b"\xc3("},
    {"order_key": b"a"},
    {"order_key": b"", "key": b"a"},
    {"queue": 0},
    {"lane": 0},
]
"""Messages that a careless hash would take for each other."""


def test_nulls_empty_texts_and_lists_are_not_taken_for_each_other(duck: Duck, tmp_path: Path) -> None:
    rows = slim(duck, tmp_path, *ALIKE)
    for (one, mine), (other, theirs) in combinations(zip(ALIKE, rows, strict=True), 2):
        assert mine["hash"] != theirs["hash"], (one, other)


def test_headers_in_another_order_are_the_same(duck: Duck, tmp_path: Path) -> None:
    one, other = slim(
        duck, tmp_path, {"headers": [("a", "1"), ("b", "2")]}, {"headers": [("b", "2"), ("a", "1")]}
    )
    assert one["hash"] == other["hash"]


def test_digests_and_units_are_those_of_kafka_and_spark(duck: Duck, tmp_path: Path) -> None:
    rows = slim(duck, tmp_path, *ALIKE, {"queue": 3, "key": b"k"}, {"order_key": b"\xff", "key": b"k"})
    for given, row in zip(ALIKE, rows, strict=False):
        assert row["digest"] == digest(given.get("key"), given.get("body"))
    assert [row["unit"] for row in rows[-2:]] == ["queue 3", "key FF"]
    assert [
        row["unit"]
        for given, row in zip(ALIKE, rows, strict=False)
        if given == {"key": b"\xff\x00", "body": b"\xc3("}
    ] == ["key FF00"]


def test_every_column_of_an_event_counts(duck: Duck, tmp_path: Path) -> None:
    columns = [column for column in TRANSACTION_EVENTS.columns if column.name != "window_hi"]
    rows = [{}, *({column.name: OTHER[column.type]} for column in columns)]
    arrays = [pa.array([row.get(column.name) for row in rows], KINDS[column.type]) for column in columns]
    path = str(tmp_path / "events.parquet")
    duck.save(rows_of.events("batches"), path, pa.table(arrays, [c.name for c in columns]).to_reader())
    assert len(set(pq.read_table(path)["hash"].to_pylist())) == len(rows)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("born_at", pa.array([-12_212_553_600_000_001], pa.timestamp("us", "UTC"))),
        ("deliver_at", pa.array([(1 << 63) - 1], pa.timestamp("us", "UTC"))),
        ("headers", pa.array(['{"a": 1}'])),
        ("headers", pa.array(["[]"])),
    ],
)
def test_what_jdbc_may_read_otherwise_is_left_to_spark(name: str, column: pa.Array) -> None:
    with pytest.raises(UnsureError, match=name):
        rows_of.certain_rows(pa.record_batch([column], [name]))


def test_text_that_is_not_utf8_is_left_to_spark() -> None:
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    with pytest.raises(pa.ArrowInvalid):
        rows_of.certain_rows(pa.record_batch([column], ["remark"]))
