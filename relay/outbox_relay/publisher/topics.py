"""Topics as the relay publishes to them: pinned partition count, selector and size limit.

A topic's partition count is pinned when it is first seen: keys are hashed over the pinned count until an operator
changes it, so that partitions added in Kafka later do not move keys and break their order. How a change is used without
breaking it: topic_changes.py.

Publishing waits for a topic only when it appears for the first time. After that a thread reads all known topics again
before they are stale, and what is known stays in use until the answer is there, however long that takes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.topic import Topic
from outbox_relay.publisher.topic_changes import TopicChanges
from outbox_relay.publisher.waking import Waking
from outbox_relay.text.logs import Log, inherit

REFRESH_S = 20.0
FORGET_S = 600.0
"""A topic without a message for this long is not kept up to date; its next message is as a first one."""
RETRY_S = 1.0
"""When topics are read again whose registry has changed, if they could not be read."""

log = Log("topics")


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
        self._retry_at = 0.0
        self._refreshing: Future[Found] | None = None
        self._refreshing_for: int | None = None
        self._read_since: set[str] = set()
        """Topics that were read by `prepare` since the thread began: what it read of them may be older."""
        self._wanted: int | None = None
        self._current: int | None = None
        """All known topics were read when the registry had this generation, or a later one."""
        self.changes = TopicChanges()
        self.waking = Waking()
        """The topics that are parked; the session's own."""
        self._pausing: set[str] = set()
        """Paused topics that may have messages on the wire."""
        self.given_up: Set[str] = frozenset()
        """The publisher's: topics of which messages may arrive that it waits for no longer."""

    def prepare(self, names: Iterable[str]) -> bool:
        """Read what is not known, all of it in one request; return whether anything was.

        All asking of Kafka and the database happens here, before anything of a page is produced: if no answer
        comes, the page can be tried again as a whole. It has to be where `changes.awaited` is not empty afterwards:
        then a topic waits for acknowledgements.

        Raises:
            KafkaUnavailableError: no broker replies; nothing is known about the topics, or not all partitions of one.
        """
        now = time.monotonic()
        missing = []
        for name in names:
            known = self._topics.get(name)
            is_known = isinstance(known, Topic) and name not in self._doubted
            if isinstance(known, Topic) and is_known and name not in self.changes.awaited:
                known.used_at = now
            else:
                missing.append(name)
        if missing:
            self._learn(self._read(self._conn, missing))
            self._read_since.update(missing)
            self._doubted.difference_update(missing)
            self.changes.await_these(missing)
            self.use_changes()
            self.changes.require_listed()
        return bool(missing)

    def known(self, name: str) -> Topic:
        """Return a topic that was prepared.

        Raises:
            Unpublishable: Kafka has no such topic, or fewer partitions than are pinned.
        """
        topic = self._topics[name]
        if isinstance(topic, Unpublishable):
            raise topic
        return topic

    def require_available(self, name: str, partition: int) -> None:
        """Refuse a partition of a prepared topic that had no leader, or too few replicas, when the topic was read.

        Raises:
            Unpublishable: it could not be written to.
        """
        topic = self.known(name)
        text = f"topic {name!r}, partition {partition}: Kafka lists"
        if partition in topic.leaderless:
            raise Unpublishable("LEADER_NOT_AVAILABLE", f"{text} no leader of it")
        if partition in topic.short:
            raise Unpublishable(
                "NOT_ENOUGH_REPLICAS", f"{text} fewer in-sync replicas than min.insync.replicas"
            )

    def closed(self, name: str) -> Unpublishable | None:
        """Return why nothing can be published to a topic, as far as is known."""
        topic = self._topics.get(name)
        return topic if isinstance(topic, Unpublishable) else None

    def skips_ahead(self, name: str) -> bool:
        """Return whether a message of a topic that cannot be published parks alone, as far as is known."""
        topic = self._topics.get(name)
        return isinstance(topic, Topic) and topic.skip_ahead

    def doubt(self, name: str) -> None:
        """Read a topic again before it is used next: a message could not be published to it."""
        self._doubted.add(name)

    def expect(self, generation: int) -> None:
        """Let the known topics be read again soon, unless they were read at this generation of the registry."""
        self._wanted = generation

    def read_anew(self, generation: int) -> None:
        """Read topics before they are used next, unless they were read, and are used, at this generation."""
        if generation != self.generation:
            self._doubted.update(self._topics)

    @property
    def generation(self) -> int | None:
        """The generation of the registry by which messages are published, and none is unacknowledged that is not.

        Of a topic that is paused, none is unacknowledged, and none may arrive that was given up: not before the
        producer is replaced. A changed count does not wait for these: what arrives by the older one is a copy.
        """
        if self._pausing:
            self._pausing.intersection_update({*self.changes.on_the_wire(), *self.given_up})
        return None if self.changes or self._pausing else self._current

    def use_changes(self) -> None:
        """Use what has changed of topics of which nothing is unacknowledged."""
        for topic in self.changes.take():
            self._use(topic)

    def _use(self, topic: Topic) -> None:
        known = self._topics.get(topic.name)
        log.info(
            "topic moves its keys",
            topic=topic.name,
            partitions=topic.partitions,
            before=known.partitions if isinstance(known, Topic) else None,
        )
        topic.used_at = time.monotonic()
        self._topics[topic.name] = topic

    def tend(self) -> None:
        """Begin or end reading the known topics again; waits for nothing but a producer's list of new partitions."""
        if self._refreshing is not None:
            if not self._refreshing.done():
                return
            done, self._refreshing = self._refreshing, None
            try:
                found = done.result()
            except (KafkaUnavailableError, DatabaseUnreachableError, psycopg.Error) as error:
                log.warning("topics not read again; what is known stays in use", error=str(error).strip())
                self._retry_at = time.monotonic() + RETRY_S
                for name in self.waking.due(time.monotonic()):
                    self.waking.close(name)
            else:
                self._learn({name: topic for name, topic in found.items() if name not in self._read_since})
                is_open = {
                    name: isinstance(topic, Topic) and topic.is_available for name, topic in found.items()
                }
                missing = {name: topic.missing for name, topic in found.items() if isinstance(topic, Topic)}
                self.waking.note(is_open, self._refreshing_for, missing)
                self._current = self._refreshing_for
        self.use_changes()
        self._refresh()

    def _refresh(self) -> None:
        now = time.monotonic()
        is_behind = self._wanted != self._current and now >= self._retry_at
        if self._refreshing is not None:
            return
        if now < self._refresh_at and not is_behind:
            if waking := self.waking.due(now):
                self._refreshing_for = self._current
                self._read_since = set()
                self._refreshing = self._refresher.start(waking)
            return
        self._refresh_at = now + REFRESH_S
        self._topics = {
            name: topic
            for name, topic in self._topics.items()
            if isinstance(topic, Topic) and now - topic.used_at < FORGET_S
        }
        self._refreshing_for = self._wanted
        # Of those that are parked, thousands perhaps, nothing else is expected before their time, unless they changed.
        parked = self.waking.due(now) if self._wanted == self._current else self.waking.names
        if names := {*self._topics, *parked}:
            self._read_since = set()
            self._refreshing = self._refresher.start(names)
        else:
            self._current = self._wanted

    def _learn(self, found: Found) -> None:
        for name, topic in found.items():
            known = self._topics.get(name)
            if isinstance(topic, Topic):
                self._pausing.discard(name)
                if not self.changes.admits(topic):
                    continue
                if isinstance(known, Topic):
                    topic.used_at, topic.cache = known.used_at, known.cache
            else:
                self.changes.forget(name)
                if topic.code == "TOPIC_PAUSED":
                    self._pausing.add(name)
            self._topics[name] = topic
