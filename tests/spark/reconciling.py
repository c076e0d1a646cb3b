"""An outbox whose relay is the test itself: it produces what it likes, and records what it likes of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from outbox_etl.dsn import parse
from outbox_etl.export import export
from outbox_etl.findings import Finding
from outbox_etl.reconcile import Outcome, Wish, reconcile
from outbox_etl.session import use_catalog
from outbox_etl.settings import Settings
from outbox_etl.target import Target, open_target
from tests.publications import record, snapshot
from tests.writing import Connection, connect, insert


@dataclass
class Sent:
    """A message as it was written."""

    message_id: str
    position: int
    key: str
    body: str


@dataclass
class World:
    """A database, a topic of one partition, and a warehouse of its own."""

    dsn: str
    bootstrap_servers: str
    topic: str
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
        self._producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 0})

    @property
    def target(self) -> Target:
        """The warehouse."""
        return open_target(self.spark, self.settings)

    def write(self, count: int, *, key: str = "k", start: int = 0) -> list[Sent]:
        """Write messages of one order key, each in a transaction of its own."""
        sent = []
        for number in range(start, start + count):
            message_id = insert(self.conn, self.topic, key, f"body {number}")
            found = self.conn.execute(
                "SELECT position FROM outbox.message WHERE message_id = %s", [message_id]
            ).fetchone()
            assert found is not None
            sent.append(Sent(message_id, found[0], key, f"body {number}"))
        return sent

    def produce(self, *messages: Sent, foreign: bool = False) -> int:
        """Put records into the topic, in this order; answer the offset of the first."""
        offsets: list[int] = []
        for message in messages:
            self._producer.produce(
                self.topic,
                message.body,
                message.key,
                partition=0,
                headers=[] if foreign else [("outbox-id", message.message_id)],
                on_delivery=lambda error, done: offsets.append(done.offset() or 0),
            )
        assert self._producer.flush(30) == 0
        return offsets[0]

    def record(self, messages: Sequence[Sent], offset: int, *, seen: str | None = None) -> None:
        """Record messages as published at consecutive offsets."""
        self.batch += 1
        seen = seen or snapshot(self.conn)
        record(self.conn, [each.position for each in messages], seen=seen, batch=self.batch, offset=offset)

    def publish(self, messages: Sequence[Sent]) -> int:
        """What a relay does when all is well."""
        offset = self.produce(*messages)
        self.record(messages, offset)
        return offset

    def export(self) -> None:
        """Fill the warehouse."""
        export(self.spark, self.settings, self.target, self.said.append)

    def reconcile(self, **wanted: Any) -> Outcome:
        """Verify."""
        wish = Wish(self.bootstrap_servers, **wanted)
        return reconcile(self.spark, self.settings, self.target, wish, self.said.append)

    def sql(self, text: str) -> None:
        """Change the warehouse behind everybody's back; `{history}` and `{publications}` are its tables."""
        names = {name: f"outbox.outbox.{table}" for name, table in TABLES.items()}
        self.spark.sql(text.format(**names)).collect()

    def certificates(self) -> list[tuple[int, int, int, int, str]]:
        """The certificates, oldest first: lo, hi, messages, problems, target."""
        return self.conn.execute(
            "SELECT window_lo::text::bigint, window_hi::text::bigint, messages, problems, target "
            "FROM outbox.certificate ORDER BY verified_at"
        ).fetchall()


TABLES = {"history": "message_history", "publications": "publications", "events": "transaction_events"}


def told(outcome: Outcome, kind: str, store: str) -> list[tuple[str | None, int | None]]:
    """The message ids and offsets of one kind of finding."""
    return [(each.message_id, each.offset) for each in outcome.found if _is(each, kind, store)]


def _is(finding: Finding, kind: str, store: str) -> bool:
    return finding.kind == kind and finding.store == store
