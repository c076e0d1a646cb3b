"""DuckDB counts what Spark counts, and leaves to Spark what it cannot read."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from outbox_etl.warehouse import duck, iceberg, iceberg_files
from outbox_etl.warehouse.files import Between, checksums_of, local_path
from outbox_etl.warehouse.mart_queries import MartQueries
from outbox_etl.warehouse.mart_tables import DAYS, GAPS, KEY_SKEW, LATENCY, MARTS, THROUGHPUT
from outbox_etl.warehouse.tables import MESSAGE_HISTORY
from tests.support.export_runs import Exports
from tests.support.late_changes import decided_late, files, first_window
from tests.support.mart_rows import DAY, NEXT, Warehouse, at, event, message, publication
from tests.support.marts_of_exports import first_run, made
from tests.support.message_streams import Stream
from tests.support.spark_marks import MARKS, first_in_gate

pytestmark = MARKS
LEFT = "counted by Spark"


@pytest.mark.gate
@pytest.mark.feature("H-04")
def test_rows_that_a_merge_replaced_are_not_counted(
    stream: Stream, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "WIDE", 0)
    exports = make_exports(stream.dsn)
    first_window(exports, stream)
    made(exports, by_duck=True)
    for _ in range(2):
        decided_late(stream)
        exports.run()
    assert files(exports, 1), "no merge has left a deleted row to be counted"
    found = made(exports, by_duck=True, everything=False)
    assert not [line for line in exports.said if LEFT in line]
    assert found == made(exports, by_duck=False)
    total = exports.target.read(MESSAGE_HISTORY).count()
    assert sum(row["sent"] for row in found[THROUGHPUT.name]) == total


@pytest.mark.parametrize("seed", first_in_gate(*range(4)))
def test_rows_of_chance_are_counted_alike(warehouse: Warehouse, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)

    def moment() -> datetime:
        return at(DAY) + timedelta(microseconds=chance.randrange(3 * 86_400_000_000))

    def one_of(*values: Any) -> Any:
        return chance.choice(values)

    messages, events, publications = [], [], []
    for number in range(1, 300):
        born, state = moment(), one_of("COMMITTED", "COMMITTED", "UNKNOWN", "DEAD", "ROLLED_BACK")
        published = one_of(None, moment()) if state == "COMMITTED" else None
        messages.append(
            message(
                number,
                one_of("a", "b", "ü"),
                born,
                state=state,
                published_at=published,
                decided_at=one_of(None, moment()),
                deliver_at=one_of(None, None, moment()),
                key=one_of(None, b"", b"k", bytes([chance.randrange(256)])),
                order_key=one_of(None, None, b"\xff", b"o"),
                body=one_of(None, b"", b"\x00" * chance.randrange(9)),
                partition=one_of(0, 1) if published else None,
                offset=one_of(-1, None, number) if published else None,
                producer_group=one_of(None, "g", "h"),
            )
        )
        if published:
            publications += [publication(number, moment(), number + n) for n in range(chance.randrange(3))]
        for n in range(chance.randrange(4)):
            states = [("UNKNOWN", one_of("COMMITTED", "EXHAUSTED")), ("EXHAUSTED", "ROLLED_BACK")]
            before, after = (None, "UNKNOWN") if not n else one_of(*states)
            kind = one_of("transition", "transition", "check")
            events.append(
                event(
                    number,
                    moment(),
                    kind=kind,
                    from_state=before if kind == "transition" else None,
                    to_state=one_of(after, "DEAD") if kind == "transition" else None,
                    answer=one_of("COMMIT", "ROLLBACK", "UNKNOWN") if kind == "check" else None,
                    actor=one_of("shop", "checker:g@h:1 (s)", "operator:ann (a)"),
                    reason=one_of(None, "x: the group's policy", "x: the group_s policy", "check 1"),
                )
            )
    found = []
    for by_duck in (True, False):
        one = Warehouse(warehouse.session, tmp_path / str(by_duck), by_duck=by_duck)
        one.fill(10, messages=messages[:200], events=events, publications=publications[:100])
        one.make(10)
        one.fill(20, messages=messages[200:], publications=publications[100:])
        one.make(20)
        assert not [line for line in one.said if LEFT in line]
        found.append({table.name: one.rows(table) for table in (*MARTS, DAYS)})
    assert all(found[0][table.name] for table in MARTS)
    assert found[0] == found[1]


CROSSING: list[dict[str, Any]] = [
    message(1, "a", at(DAY, 86_390), published_at=at(NEXT, 5), partition=0, offset=1, key=b"k"),
    message(2, "a", at(NEXT, 100), key=b"k"),
    message(3, "a", at(DAY, 86_395), published_at=at(NEXT, 500), partition=0, offset=2, key=b"k"),
]
"""A message of each of three windows."""


@pytest.mark.gate
@pytest.mark.feature("H-04")
def test_what_was_sent_and_published_on_a_day_is_counted_whichever_touched_it(
    mart_spark: SparkSession, tmp_path: Path
) -> None:
    """Around midnight a window may insert messages of a day and publish none, or the other way round."""
    warehouse = Warehouse(mart_spark, tmp_path / "warehouse", form="iceberg")
    found = []
    for window_hi, each in zip((10, 20, 30), CROSSING, strict=True):
        when, number = each.get("published_at"), each["id"]
        told = [publication(number, when, each["offset"])] if when else []
        warehouse.fill(window_hi, messages=[each], publications=told)
        warehouse.make(window_hi)
        found.append([(row["day"], row["sent"], row["published"]) for row in warehouse.rows(THROUGHPUT)])
    assert not [line for line in warehouse.said if LEFT in line]
    assert found == [
        [(DAY, 1, 0), (NEXT, 0, 1)],
        [(DAY, 1, 0), (NEXT, 1, 1)],
        [(DAY, 2, 0), (NEXT, 1, 2)],
    ]


@pytest.mark.parametrize("seed", first_in_gate(1, 2))
def test_windows_of_chance_leave_what_all_days_made_anew_by_spark_give(
    mart_spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    warehouse = Warehouse(mart_spark, tmp_path / "warehouse", form="iceberg")
    chance, number = random.Random(seed), 0

    def moment(days: int) -> datetime:
        return at(DAY) + timedelta(seconds=chance.randrange(days * 86_400))

    for window_hi in range(10, 60, 10):
        messages, events, publications = [], [], []
        for _ in range(chance.randrange(1, 5)):
            number += 1
            born, told = moment(4), chance.random()
            published = born + timedelta(hours=chance.randrange(40)) if told < 0.6 else None
            place = {"partition": 0, "offset": number} if published else {}
            messages.append(
                message(number, "a", born, published_at=published, key=b"k", producer_group="g", **place)
            )
            if published:
                publications.append(publication(number, published, number))
            if told > 0.5:
                events.append(event(number, born, from_state=None, to_state="UNKNOWN"))
        if chance.random() < 0.7:
            asked = chance.randrange(1, number + 1)
            events.append(event(asked, moment(6), kind="check", answer="COMMIT"))
            publications.append(publication(asked, moment(6), 1_000 + window_hi))
        warehouse.fill(window_hi, messages=messages, events=events, publications=publications)
        warehouse.make(window_hi)
    assert not [line for line in warehouse.said if LEFT in line]
    found = {table.name: warehouse.rows(table) for table in MARTS}
    warehouse.by_duck = False
    warehouse.make(50, everything=True)
    assert found == {table.name: warehouse.rows(table) for table in MARTS}


def one_day(warehouse: Warehouse) -> list[Path]:
    """Fill a warehouse with a message; return the files of its history."""
    warehouse.fill(
        10,
        messages=[message(1, "a", at(DAY), published_at=at(DAY), partition=0, offset=1, key=b"k")],
        publications=[publication(1, at(DAY), 1)],
    )
    return list(warehouse.path.rglob("message_history/**/*.parquet"))


def is_made(warehouse: Warehouse) -> bool:
    """Whether all marts have the day of that message."""
    return all(warehouse.rows(table) for table in (THROUGHPUT, LATENCY, KEY_SKEW, GAPS))


@pytest.mark.gate
def test_a_file_that_differs_from_its_checksums_is_left_to_spark(warehouse: Warehouse) -> None:
    path = max(one_day(warehouse), key=lambda path: path.stat().st_size)
    sums = checksums_of(str(path))
    whole = sums.read_bytes()
    sums.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(Exception, match="Checksum error"):
        warehouse.make(10)
    assert [line for line in warehouse.said if f"{LEFT}: a file does not have its checksums" in line]
    sums.write_bytes(whole)
    assert warehouse.make(10) == [DAY]
    assert is_made(warehouse)


@pytest.mark.parametrize("at_statement", first_in_gate(3, 1, 2, 6, 9))
def test_what_duckdb_cannot_count_is_counted_by_spark(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch, at_statement: int
) -> None:
    import duckdb

    one_day(warehouse)
    asked, ask = [], duck.Duck._rows_of

    def rows_of(self: duck.Duck, text: str) -> Any:
        asked.append(text)
        if len(asked) == at_statement:
            raise duckdb.OutOfMemoryException("of a value that nobody may see")
        return ask(self, text)

    monkeypatch.setattr(duck.Duck, "_rows_of", rows_of)
    assert warehouse.make(10) == [DAY]
    assert is_made(warehouse)
    assert [line for line in warehouse.said if LEFT in line] == [
        "marts are counted by Spark: OutOfMemoryException"
    ]
    assert len(asked) == at_statement


@pytest.mark.gate
def test_only_files_of_the_days_are_read(stream: Stream, make_exports: Callable[..., Exports]) -> None:
    exports = make_exports(stream.dsn)
    stream.send()
    exports.run()
    now = datetime.now(UTC)
    tomorrow = now + timedelta(days=1)

    def names(low: datetime, high: datetime) -> list[str]:
        between = Between("born_at", low.isoformat(), high.isoformat())
        found = exports.target.files(MESSAGE_HISTORY, [between])
        assert found is not None
        return found.paths

    there = [local_path(path) for path in files(exports, 0)]
    assert names(now - timedelta(days=1), tomorrow) == there
    assert names(tomorrow, tomorrow + timedelta(days=1)) == []
    least, most = exports.target.read(MESSAGE_HISTORY).selectExpr("min(id)", "max(id)").collect()[0]
    for low, high, expected in ((0, least, []), (most, 1 << 62, there), (most + 1, 1 << 62, [])):
        found = exports.target.files(MESSAGE_HISTORY, [Between("id", low, high)])
        assert found is not None
        assert found.paths == expected
    everything, nothing = (
        exports.target.files(MESSAGE_HISTORY, None),
        exports.target.files(MESSAGE_HISTORY, ()),
    )
    assert everything is not None
    assert everything.paths == there
    assert nothing is not None
    assert nothing.paths == []


def test_a_duckdb_that_does_not_start_is_left_out(
    stream: Stream, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    import duckdb

    exports = make_exports(stream.dsn)
    first_run(exports, stream)

    def connect(**_: Any) -> None:
        raise duckdb.IOException("of a path that nobody may see")

    monkeypatch.setattr(duckdb, "connect", connect)
    assert made(exports, by_duck=True)[THROUGHPUT.name]
    assert [line for line in exports.said if LEFT in line] == [f"marts are {LEFT}: IOException"]


def test_too_many_files_are_left_to_spark(
    stream: Stream, make_exports: Callable[..., Exports], monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = make_exports(stream.dsn)
    stream.send()
    exports.run()
    monkeypatch.setattr(iceberg_files, "MOST_FILES", 0)
    assert exports.target.files(MESSAGE_HISTORY, None) is None
    assert made(exports, by_duck=True)[THROUGHPUT.name]
    assert [line for line in exports.said if LEFT in line]


def test_publications_are_counted_alike_where_each_message_has_one(warehouse: Warehouse) -> None:
    chance = random.Random(7)
    messages, publications = [], []
    for number in range(1, 200):
        published, offset = at(DAY) + timedelta(minutes=chance.randrange(4_000)), chance.choice([-1, number])
        place = {"partition": number % 3, "offset": offset}
        state = "COMMITTED" if number % 7 else "DEAD"
        messages.append(
            message(number, f"t{number % 2}", at(DAY), state=state, published_at=published, **place)
        )
        if state == "COMMITTED":
            publications.append(publication(number, published, offset, partition=number % 3))
    warehouse.fill(10, messages=messages, publications=publications)
    warehouse.make(10)
    found = warehouse.rows(GAPS)
    with pytest.MonkeyPatch.context() as patch:
        rows, names = MartQueries.rows, list[str]()

        def other(self: MartQueries, name: str, **values: int | str) -> Any:
            names.append(name)
            answer = rows(self, name, **values)
            return [{"is_so": not answer[0]["is_so"]}] if name == "published_once" else answer

        patch.setattr(MartQueries, "rows", other)
        warehouse.make(10, everything=True)
    assert "published_once" in names
    assert found
    assert found == warehouse.rows(GAPS)
