"""Outboxes whose relay is the test itself: it produces what it likes, and records what it likes of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from outbox_etl.export import export
from outbox_etl.options.dsn import parse
from outbox_etl.options.settings import Settings
from outbox_etl.reconcile import local
from outbox_etl.reconcile.findings import Finding
from outbox_etl.reconcile.request import ReconcileRequest, ReconcileResult
from outbox_etl.reconcile.run import reconcile
from outbox_etl.session import use_catalog
from outbox_etl.warehouse.opening import open_target
from outbox_etl.warehouse.target import Target
from tests.support.databases import Databases
from tests.support.kafka_transactions import kafka_transaction
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import record, snapshot

Told = tuple[str, str | None, int | None]
"""A finding: its kind, the message id, the offset."""


class MakeWorld(Protocol):
    """Makes an outbox without a relay, and a warehouse for it; Iceberg if rows are to be changed."""

    def __call__(self, format: str = "parquet") -> World: ...


@dataclass
class Sent:
    """A message as it was written."""

    message_id: str
    position: int
    key: str
    body: str


@dataclass
class World:
    """A database and a warehouse of its own."""

    dsn: str
    bootstrap_servers: str
    session: SparkSession
    warehouse: Path
    format: str = "parquet"
    """Iceberg's commits take most of the time: only tests that change rows behind the export's back need it."""
    batch: int = 0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.conn: Connection = connect(self.dsn)
        self.settings = Settings(parse(self.dsn), str(self.warehouse), format=self.format, partitions=1)
        self.spark = self.session.newSession()  # a catalog of its own
        if self.format == "iceberg":
            use_catalog(self.spark, self.settings)
        self.producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "linger.ms": 0, "log_level": 0}
        )

    @property
    def target(self) -> Target:
        """The warehouse."""
        return open_target(self.spark, self.settings)

    def export(self) -> None:
        """Fill the warehouse."""
        export(self.spark, self.settings, self.target, self.said.append)

    def reconcile(self, **wanted: Any) -> ReconcileResult:
        """Verify."""
        request = ReconcileRequest(self.bootstrap_servers, **wanted)
        return reconcile(self.spark, self.settings, self.target, request, self.said.append)

    def reconcile_by_spark(self, **wanted: Any) -> ReconcileResult:
        """Verify as on a cluster: no row is read or compared by DuckDB."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "local_rows", lambda *_: None)
            return self.reconcile(**wanted)

    def left_to_spark(self) -> list[str]:
        """What DuckDB left to Spark, as it was said."""
        return [line for line in self.said if "by Spark: " in line]

    def sql(self, text: str) -> None:
        """Change the warehouse behind everybody's back; `{history}` and `{publications}` are its tables."""
        names = {name: f"outbox.outbox.{table}" for name, table in TABLES.items()}
        self.spark.sql(text.format(**names)).collect()

    def certificates(self) -> list[tuple[int, int, int, int, str, str]]:
        """The certificates, oldest first: lo, hi, messages, problems, target, checksum."""
        return self.conn.execute(
            "SELECT window_lo::text::bigint, window_hi::text::bigint, messages, problems, target, checksum "
            "FROM outbox.certificate ORDER BY xid"
        ).fetchall()


TABLES = {"history": "message_history", "publications": "publications", "events": "transaction_events"}


@contextmanager
def worlds(
    session: SparkSession, databases: Databases, bootstrap_servers: str, directory: Path
) -> Iterator[MakeWorld]:
    """Make worlds of a Spark, further ones under names of their own; they end with the block."""
    made: list[World] = []

    def make(format: str = "parquet") -> World:
        place = directory / str(len(made)) / "warehouse"
        place.parent.mkdir()
        made.append(World(databases.make(), bootstrap_servers, session, place, format))
        return made[-1]

    yield make
    for world in made:
        world.conn.close()
    databases.drop_made()


@dataclass
class Scene:
    """A topic of one partition, and what a relay does to it."""

    world: World
    topic: str

    def write(self, count: int, *, start: int = 0, conn: Connection | None = None) -> list[Sent]:
        """Write messages of one order key, each in a transaction of its own unless the connection has one open."""
        conn = conn or self.world.conn
        sent = []
        for number in range(start, start + count):
            message_id = insert(conn, self.topic, "k", f"body {number}")
            found = conn.execute(
                "SELECT position FROM outbox.message WHERE message_id = %s", [message_id]
            ).fetchone()
            assert found is not None
            sent.append(Sent(message_id, found[0], "k", f"body {number}"))
        return sent

    def produce(self, *messages: Sent, foreign: bool = False) -> int:
        """Put records into the topic, in this order; answer the offset of the first."""
        offsets: list[int] = []
        for message in messages:
            self._put(self.world.producer, message, offsets, foreign=foreign)
        assert self.world.producer.flush(30) == 0
        return offsets[0]

    def _put(self, producer: Producer, message: Sent, offsets: list[int], *, foreign: bool) -> None:
        producer.produce(
            self.topic,
            message.body,
            message.key,
            partition=0,
            headers=[] if foreign else [("outbox-id", message.message_id)],
            on_delivery=lambda error, done: offsets.append(done.offset() or 0),
        )

    @contextmanager
    def transaction(self, *messages: Sent, commit: bool = True, foreign: bool = True) -> Iterator[None]:
        """Put records into the topic as another producer does, within a transaction that ends with the block."""
        with kafka_transaction(self.world.bootstrap_servers, self.topic, commit=commit) as producer:
            for message in messages:
                self._put(producer, message, [], foreign=foreign)
            producer.flush(30)
            yield

    def record(self, messages: Sequence[Sent], offset: int) -> None:
        """Record messages as published at consecutive offsets."""
        world = self.world
        world.batch += 1
        seen = snapshot(world.conn)
        positions = [each.position for each in messages]
        record(world.conn, positions, seen=seen, batch=world.batch, offset=offset)

    def publish(self, messages: Sequence[Sent]) -> int:
        """What a relay does when all is well."""
        offset = self.produce(*messages)
        self.record(messages, offset)
        return offset


def told(found: Sequence[Finding], topic: str | None = None) -> list[Told]:
    """What was found, of one topic or of all."""
    return sorted((each.kind, each.message_id, each.offset) for each in found if topic in (None, each.topic))


SUMS = ("postgres_checksum", "kafka_checksum", "warehouse_checksum")


def essence(result: ReconcileResult) -> dict[str, Any]:
    """What a verification found, whoever compared: each engine has hashes of its own, so of sums which are equal."""
    partitions = [
        {name: value for name, value in row.items() if name not in SUMS}
        | {"equal": [row[one] == row[other] for one, other in combinations(SUMS, 2)]}
        for row in result.partitions
    ]
    return {
        "found": sorted(map(str, result.found)),
        "allowed": sorted(map(str, result.allowed)),
        "totals": dict(result.totals),
        "notes": dict(result.notes),
        "counts": (result.messages, result.records, result.problems),
        "partitions": partitions,
    }
