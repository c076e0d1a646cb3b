"""Topics as the relay publishes to them: pinned partition count, selector and size limit.

A topic's partition count is pinned when it is first seen: keys are hashed over the pinned count for ever, so
that partitions added in Kafka later do not move keys and break their order.

Publishing waits for a topic only when it appears for the first time. After that a thread reads all known topics again
before they are stale, and what is known stays in use until the answer is there, however long that takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.text.logs import Log, inherit

REFRESH_S = 20.0
FORGET_S = 600.0
"""A topic without a message for this long is not kept up to date; its next message is as a first one."""
KEYS_CACHED = 100_000
ROOM = 16_384
"""Bytes below a topic's limit within which a message's full size is computed before it is produced."""

log = Log("topics")


@dataclass(slots=True)
class Topic:
    """One topic: what is pinned, and a cache of key → partition for the default selector."""

    name: str
    partitions: int
    selector: str | None
    max_message_bytes: int
    """The smaller of what is registered and what Kafka takes, so that no batch of several is refused."""
    used_at: float = field(default_factory=time.monotonic)
    cache: dict[bytes, int] = field(default_factory=dict)
    small: int = 0
    """A body up to this many bytes certainly fits."""

    def __post_init__(self) -> None:
        self.small = max(self.max_message_bytes - ROOM, 0)


Found = Mapping[str, Topic | Unpublishable]
Read = Callable[[psycopg.Connection[Any], Iterable[str]], Found]


class Refresher:
    """Reads topics on one thread, with a database connection of its own that is opened when it is first needed."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], read: Read) -> None:
        self._connect = connect
        self._read = read
        self._conn: psycopg.Connection[Any] | None = None
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="topics", initializer=inherit())

    def start(self, names: Iterable[str]) -> Future[Found]:
        """Begin to read these topics."""
        return self._pool.submit(self._run, list(names))

    def _run(self, names: list[str]) -> Found:
        if self._conn is None or self._conn.closed:
            self._conn = self._connect()
        return self._read(self._conn, names)

    def close(self) -> None:
        """Wait for what was begun, and close the connection."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._conn is not None:
            self._conn.close()


class TopicBook:
    """Knows topics, keeps them up to date, and registers those that are not registered."""

    def __init__(self, conn: psycopg.Connection[Any], read: Read, refresher: Refresher) -> None:
        self._conn = conn
        self._read = read
        self._refresher = refresher
        self._topics: dict[str, Topic | Unpublishable] = {}
        self._doubted: set[str] = set()
        self._refresh_at = time.monotonic() + REFRESH_S
        self._refreshing: Future[Found] | None = None

    def prepare(self, names: Iterable[str]) -> None:
        """Read what is not known, all of it in one request.

        All asking of Kafka and the database happens here, before anything of a page is produced: if no answer
        comes, the page can be tried again as a whole.

        Raises:
            KafkaUnavailableError: no broker replies; nothing is known about the topics.
        """
        now = time.monotonic()
        missing = []
        for name in names:
            known = self._topics.get(name)
            if isinstance(known, Topic) and name not in self._doubted:
                known.used_at = now
            else:
                missing.append(name)
        if missing:
            self._learn(self._read(self._conn, missing))
            self._doubted.difference_update(missing)

    def known(self, name: str) -> Topic:
        """Return a topic that was prepared.

        Raises:
            Unpublishable: Kafka has no such topic, or fewer partitions than are pinned.
        """
        topic = self._topics[name]
        if isinstance(topic, Unpublishable):
            raise topic
        return topic

    def doubt(self, name: str) -> None:
        """Read a topic again before it is used next: a message could not be published to it."""
        self._doubted.add(name)

    def tend(self) -> None:
        """Begin or end reading the known topics again; never waits."""
        if self._refreshing is not None:
            if not self._refreshing.done():
                return
            done, self._refreshing = self._refreshing, None
            try:
                self._learn(done.result())
            except (KafkaUnavailableError, DatabaseUnreachableError, psycopg.Error) as error:
                log.warning("topics not read again; what is known stays in use", error=str(error).strip())
        now = time.monotonic()
        if now < self._refresh_at:
            return
        self._refresh_at = now + REFRESH_S
        self._topics = {
            name: topic
            for name, topic in self._topics.items()
            if isinstance(topic, Topic) and now - topic.used_at < FORGET_S
        }
        if self._topics:
            self._refreshing = self._refresher.start(self._topics)

    def _learn(self, found: Found) -> None:
        for name, topic in found.items():
            known = self._topics.get(name)
            if isinstance(topic, Topic) and isinstance(known, Topic):
                topic.used_at = known.used_at
                if known.partitions == topic.partitions:
                    topic.cache = known.cache
            self._topics[name] = topic
