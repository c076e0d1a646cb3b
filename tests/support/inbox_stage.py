"""A topic, a database with a business table, and consumers on both: what the tests of the inbox share.

A listener writes one row into `applied` for each message, on the connection that it is given. So the table
counts effects, and its numbers order them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from tests.support.waiting import wait_until

Connection = psycopg.Connection[Any]
Listener = Callable[[Connection, ConsumedMessage], ConsumeResult]
FAST = DelaySchedule.of([0.05] * 3)
TABLE = """
    CREATE TABLE IF NOT EXISTS applied (
        n bigint GENERATED ALWAYS AS IDENTITY, message_id uuid NOT NULL, key text, body text, member text
    )
"""


def apply(conn: Connection, message: ConsumedMessage, member: str = "") -> ConsumeResult:
    """Write one row for a message: a listener."""
    key, body = (None if part is None else part.decode() for part in (message.key, message.body))
    conn.execute(
        "INSERT INTO applied (message_id, key, body, member) VALUES (%s, %s, %s, %s)",
        [message.message_id, key, body, member],
    )
    return ConsumeResult.SUCCESS


def apply_all(conn: Connection, messages: Sequence[ConsumedMessage]) -> ConsumeResult:
    """Write one row for each message: a batch listener."""
    for message in messages:
        apply(conn, message)
    return ConsumeResult.SUCCESS


class InboxStage:
    """One database and one broker."""

    def __init__(self, dsn: str, bootstrap_servers: str, *, group: str = "") -> None:
        self.dsn, self.bootstrap_servers = dsn, bootstrap_servers
        self.group = group or f"group-{uuid4().hex[:8]}"
        self.conn: Connection = psycopg.connect(dsn, autocommit=True)
        self.conn.execute(TABLE)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "linger.ms": 1,
                "enable.idempotence": True,  # a batch that is sent again stays in front of later ones
                "log_level": 0,
            }
        )

    def produce(
        self,
        topic: str,
        key: str | None,
        body: str | bytes | None,
        *,
        message_id: UUID | str | None = "",
        partition: int = 0,
        tags: str | None = None,
        born_at: float | None = None,
        timestamp: int = 0,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> str:
        """Hand one record over to the producer, with the headers of the outbox; return its id.

        `timestamp` is Kafka's, in milliseconds since 1970; 0: now.
        """
        number = str(uuid4()) if message_id == "" else message_id
        all_headers: list[tuple[str, str | bytes | None]] = [*headers]
        if number is not None:
            born = int((born_at or time.time()) * 1000)
            all_headers += [("outbox-id", str(number)), ("outbox-born-at", str(born))]
        if tags is not None:
            all_headers.append(("outbox-tags", tags))
        self._producer.produce(topic, body, key, partition, timestamp=timestamp, headers=all_headers)
        return str(number)

    def produce_numbered(self, topic: str, count: int, *, keys: int = 10, start: int = 0) -> list[str]:
        """Produce `count` messages in turn over so many keys, each with its number as the body; return their ids."""
        ids = [
            self.produce(topic, f"k{number % keys}", str(number), partition=(number % keys) % 4)
            for number in range(start, start + count)
        ]
        self.flush()
        return ids

    def produce_numbered_in(self, topic: str, count: int, *, partition: int = 0) -> None:
        """Produce `count` messages of one key into one partition, each with its number as the body."""
        for number in range(count):
            self.produce(topic, "k", str(number), partition=partition)
        self.flush()

    def produce_in_transactions(self, topic: str, count: int) -> None:
        """Produce one message in each of so many transactions of Kafka, and abort one in between."""
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "transactional.id": f"test-{uuid4()}",
                "log_level": 0,
            }
        )
        producer.init_transactions(30)
        for number in range(count):
            producer.begin_transaction()
            producer.produce(topic, str(number), "k", 0)
            producer.commit_transaction(30)
            producer.begin_transaction()
            producer.produce(topic, "aborted", "k", 0)
            producer.flush(30)
            producer.abort_transaction(30)

    def end_of(self, topic: str, partition: int = 0) -> int:
        """Kafka's next offset."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "ends", "log_level": 0})
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=15)[1])
        finally:
            consumer.close()

    def forget_offsets(self, group: str) -> None:
        """Delete a group from Kafka, as its expiry does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        for deleted in admin.delete_consumer_groups([group]).values():
            deleted.result(15)

    def flush(self) -> None:
        """Wait until the broker has all records."""
        assert self._producer.flush(30) == 0, "the broker did not take all records"

    def consumer(
        self, topics: Mapping[str, Any] | str, listener: Callable[..., Any] = apply, **options: Any
    ) -> PushConsumer:
        """Make a consumer of the group of this test."""
        settings: dict[str, Any] = {
            "dsn": self.dsn,
            "kafka": {"bootstrap.servers": self.bootstrap_servers, "session.timeout.ms": 6000},
            "consume_from": FIRST,
            "workers": 4,
            "retry_workers": 2,
            "delays": FAST,
            **options,
        }
        subscribed = {topics: "*"} if isinstance(topics, str) else topics
        return PushConsumer(settings.pop("group", self.group), subscribed, listener, **settings)

    def applied(self, column: str = "message_id") -> list[str]:
        """The effects in the order in which they were applied, by one column."""
        rows = self.conn.execute(f"SELECT {column}::text FROM applied ORDER BY n".encode())
        return [row[0] for row in rows.fetchall()]

    def by_key(self) -> dict[str, list[int]]:
        """The bodies that were applied, as numbers, for each key."""
        found: dict[str, list[int]] = {}
        for key, body in self.conn.execute("SELECT key, body FROM applied ORDER BY n").fetchall():
            found.setdefault(key, []).append(int(body))
        return found

    def wait_applied(self, count: int, *, seconds: float = 120.0) -> None:
        """Wait until so many effects are applied."""
        wait_until(lambda: self.count("applied") >= count, f"{count} effects are applied", seconds=seconds)

    def count(self, table: str, where: str = "true") -> int:
        """How many rows of a table fit."""
        row = self.conn.execute(f"SELECT count(*) FROM {table} WHERE {where}".encode()).fetchone()
        assert row is not None
        return int(row[0])

    def committed(self, topic: str, partition: int = 0) -> int:
        """The offset of the group in Kafka."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": self.group, "log_level": 0}
        )
        try:
            return int(consumer.committed([TopicPartition(topic, partition)], timeout=15)[0].offset)
        finally:
            consumer.close()

    def set_committed(self, topic: str, offsets: dict[int, int]) -> None:
        """Set the offsets of the group in Kafka, as a tool of Kafka does while no member runs."""
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap_servers, "group.id": self.group, "log_level": 0}
        )
        try:
            places = [TopicPartition(topic, part, offset) for part, offset in offsets.items()]
            consumer.commit(offsets=places, asynchronous=False)
        finally:
            consumer.close()

    def end_sessions(self) -> int:
        """End all sessions of consumers at PostgreSQL; return how many there were."""
        rows = self.conn.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'outbox consumer%'"
        )
        return len(rows.fetchall())

    def close(self) -> None:
        """Leave the servers."""
        self.conn.close()
