"""Reconcile reads and compares by DuckDB only what is certain to come out as Spark has it; all else is Spark's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from psycopg.types.json import Jsonb

from outbox_etl.errors import SourceError
from outbox_etl.reconcile.kafka import Broker
from outbox_etl.reconcile.local import LocalRows
from outbox_etl.reconcile.request import ReconcileResult
from outbox_etl.warehouse.duck import Duck, UnreadableError
from outbox_etl.warehouse.files import checksums_of
from tests.support.recorded_by_hand import MakeWorld, Scene, Sent, World, essence
from tests.support.servers import MakeTopic
from tests.support.spark_marks import MARKS

pytestmark = MARKS

HOSTILE: list[dict[str, Any]] = [
    {"headers": Jsonb({"a": None, "bb": "", "c\\": '"', "": "\u0001"})},
    {"headers": Jsonb({})},
    {"headers": None, "key": None, "body": None},
    {"key": b"\xff\x00", "body": b"\xc3(\x00"},
    {"tags": [], "index_keys": ["", "NULL"]},
    {"deliver_before": "9999-12-31 23:59:59.999999+00", "transaction_id": "\u2028 \U0001f600"},
    {"biz_type": "", "biz_id": " "},
    {"born_at": "1900-01-01 00:00:00+00"},
]
BEYOND: dict[str, list[dict[str, Any]]] = {
    "deliver_before outside the years": [{"deliver_before": "infinity"}],
    "born_at outside the years": [{"born_at": "1500-03-01 00:00:00+00"}],
    "headers that are not an object of strings": [{"headers": Jsonb({"a": 1})}],
}


def outbox(world: World, topic: str, changes: list[dict[str, Any]]) -> tuple[Scene, list[Sent]]:
    """Messages that look like that, published and exported."""
    scene = Scene(world, topic)
    sent = scene.write(len(changes) + 2)
    # As a disk does it, not a program: the guards are no part of this.
    world.conn.execute("SET session_replication_role = replica")
    for message, columns in zip(sent, changes, strict=False):
        for name, value in columns.items():
            text = f"UPDATE outbox.message SET {name} = %s WHERE message_id = %s"
            world.conn.execute(text, [value, message.message_id])
    world.conn.execute("SET session_replication_role = origin")
    offset = scene.produce(*sent)
    scene.record(sent, offset)
    world.export()
    return scene, sent


def need_what_spark_finds(world: World, outcome: ReconcileResult) -> None:
    assert essence(outcome) == essence(world.reconcile_by_spark(everything=True))


@pytest.mark.gate
@pytest.mark.feature("H-02")
def test_hostile_rows_are_found_as_by_spark(module_worlds: MakeWorld, make_topic: MakeTopic) -> None:
    world = module_worlds("iceberg")
    scene, sent = outbox(world, make_topic(partitions=1), HOSTILE)
    for value in (b"\xff\x00", b"", b"no uuid"):
        world.producer.produce(scene.topic, b"x", None, headers=[("outbox-id", value)])
    scene.produce(sent[-1])  # (doubled)
    scene.produce(sent[-2], foreign=True)
    first = world.reconcile(everything=True)
    assert world.left_to_spark() == []
    need_what_spark_finds(world, first)
    # (what was written as the record is not what these rows say)
    altered = {sent[2].message_id, sent[3].message_id}
    assert {each.message_id for each in first.found if each.kind == "altered"} == altered
    assert all(each.store == "kafka" for each in first.found), "the warehouse has what PostgreSQL has"
    assert (first.totals["unknown in kafka"], first.notes["doubled"], first.partitions[0]["foreign"]) == (
        3,
        1,
        1,
    )


@pytest.mark.parametrize("reason", BEYOND)
def test_what_is_not_certain_is_read_and_compared_by_spark(
    module_worlds: MakeWorld, make_topic: MakeTopic, reason: str
) -> None:
    world = module_worlds()
    outbox(world, make_topic(partitions=1), BEYOND[reason])
    outcome = world.reconcile()
    [line] = world.left_to_spark()
    assert reason in line
    need_what_spark_finds(world, outcome)


@pytest.fixture
def damaged(module_worlds: MakeWorld, make_topic: MakeTopic) -> World:
    """One message lost in the warehouse, one in Kafka."""
    world = module_worlds("iceberg")
    scene = Scene(world, make_topic(partitions=1))
    sent = scene.write(4)
    scene.record(sent, scene.produce(*sent[:3]))
    world.export()
    world.sql(f"DELETE FROM {{history}} WHERE message_id = '{sent[0].message_id}'")
    return world


FAILING: dict[str, Callable[[str], bool]] = {
    "while it reads": lambda text: "FROM p_messages WHERE" in text,
    "at the places": lambda text: "FROM places" in text,
    "at the totals": lambda text: "no_longer_in_kafka" in text,
}


@pytest.mark.parametrize("when", FAILING)
def test_spark_goes_on_where_duckdb_fails(damaged: World, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    ask = Duck.ask

    def fail(self: Duck, text: str) -> Any:
        if FAILING[when](text):
            raise UnreadableError("OutOfMemoryException")
        return ask(self, text)

    monkeypatch.setattr(Duck, "ask", fail)
    outcome = damaged.reconcile(everything=True)
    assert len(damaged.left_to_spark()) == 1
    monkeypatch.undo()
    need_what_spark_finds(damaged, outcome)
    assert outcome.problems > 1


@pytest.mark.parametrize("name", ["suspects", "kafka_suspects", "inversions"])
def test_spark_goes_on_where_duckdb_cannot_write(
    damaged: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    save = Duck.save

    def fail(self: Duck, text: str, path: str, *given: Any) -> int:
        if Path(path).stem == name:
            raise UnreadableError("OutOfMemoryException")
        return save(self, text, path, *given)

    monkeypatch.setattr(Duck, "save", fail)
    outcome = damaged.reconcile(everything=True)
    assert damaged.left_to_spark() == ["rows are compared by Spark: OutOfMemoryException"]
    monkeypatch.undo()
    need_what_spark_finds(damaged, outcome)


def test_spark_reads_the_records_that_duckdb_cannot_have(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Duck.own

    def fail(self: Duck, name: str, paths: list[str]) -> None:
        if name == "records":
            raise MemoryError
        own(self, name, paths)

    monkeypatch.setattr(Duck, "own", fail)
    outcome = damaged.reconcile(everything=True)
    assert damaged.left_to_spark() == ["rows are compared by Spark: MemoryError"]
    monkeypatch.undo()
    need_what_spark_finds(damaged, outcome)


def test_records_lost_on_the_way_are_never_taken_for_records_that_are_not_there(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = Broker.save

    def lose(self: Broker, *given: Any) -> list[tuple[str, int]]:
        made = save(self, *given)
        path = next(path for path, rows in made if rows)
        pq.write_table(pq.read_table(path).slice(1), path)
        return made

    monkeypatch.setattr(Broker, "save", lose)
    with pytest.raises(SourceError, match="cannot be read again"):
        damaged.reconcile(everything=True)
    assert damaged.certificates() == []


def test_rows_that_are_lost_on_the_way_are_never_taken_for_rows_that_are_not_there(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Duck.own

    def lose(self: Duck, name: str, paths: list[str]) -> None:
        if name == "p_messages":
            [path] = [path for path in paths if Path(path).is_file()][:1]
            self.save("SELECT * FROM mine LIMIT 0" if own(self, "mine", [path]) is None else "", path + "_")
            Path(path + "_").replace(path)
        own(self, name, paths)

    monkeypatch.setattr(Duck, "own", lose)
    outcome = damaged.reconcile(everything=True)
    assert "does not have the rows that were written" in damaged.left_to_spark()[0]
    monkeypatch.undo()
    need_what_spark_finds(damaged, outcome)


def test_a_file_of_the_warehouse_without_its_checksums_is_not_read_by_duckdb(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in damaged.warehouse.rglob("data/**/*.parquet"):
        sums = checksums_of(str(path))
        assert sums.is_file()
        found = sums.read_bytes()
        sums.write_bytes(found[:-1] + bytes([found[-1] ^ 1]))
    with pytest.raises(Exception, match=r"(?i)checksum"):
        damaged.reconcile(everything=True)
    assert "a file does not have its checksums" in damaged.left_to_spark()[0]


@pytest.mark.parametrize("when", ["never", "while it reads"])
def test_what_was_read_is_removed(damaged: World, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    made: list[LocalRows] = []
    begin = LocalRows.__init__

    def watch(self: LocalRows, *given: Any) -> None:
        begin(self, *given)
        made.append(self)

    def fail(self: LocalRows, *given: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(LocalRows, "__init__", watch)
    if when == "while it reads":
        monkeypatch.setattr(LocalRows, "_warehouse", fail)
    damaged.reconcile(everything=True)
    assert len(damaged.left_to_spark()) == (when != "never")
    [rows] = made
    assert not Path(rows._folder.name).exists()
