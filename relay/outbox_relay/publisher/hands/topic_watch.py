"""Topics as the core publishes to them: read when they are used first, and again on a thread before that is stale.

What is read is Kafka's metadata and the registry, outbox.topic. It decides which topics are held: one that Kafka does
not have, that is forbidden, or that somebody paused. A partition count moves when the core has written it (R9).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg

from outbox_relay.database.connections import DatabaseUnreachableError
from outbox_relay.publisher.core.values import Scope
from outbox_relay.publisher.errors import KafkaUnavailableError, Unpublishable
from outbox_relay.publisher.records import Topic
from outbox_relay.publisher.topics import TopicLookup
from outbox_relay.text.logs import Log, inherit

REFRESH_S = 20.0
FORGET_S = 600.0
"""A topic without a message for this long is not kept up to date; its next message is as a first one."""
AGAIN_S = 1.0
"""When topics are read again that could not be read, or whose registry has changed."""

log = Log("topics")

Found = Mapping[str, Topic | Unpublishable]
Tried = Mapping[Scope, float | None]
"""Holds that are tried again, and when an operator asked for it; None: their pauses are over."""


class TopicWatch:
    """Reads topics, and knows when to read them again: on a thread and a connection of its own, while it has any.

    What is known stays in use until what is read again is there, however long that takes.
    """

    def __init__(
        self,
        conn: psycopg.Connection[object],
        lookup: TopicLookup,
        connect: Callable[[], psycopg.Connection[Any]],
        topics: dict[str, Topic],
    ) -> None:
        """Begin without a topic.

        Args:
            conn: of the publishing loop, for new topics.
            lookup: reads topics from Kafka and the registry.
            connect: opens the thread's connection.
            topics: those that can be published to are noted here.
        """
        self._conn = conn
        self._lookup = lookup
        self._connect = connect
        self._thread: ThreadPoolExecutor | None = None
        self._threads_conn: psycopg.Connection[Any] | None = None
        self.open = topics
        self.closed: dict[str, Unpublishable] = {}
        self.unlisted: set[str] = set()
        """Topics with partitions that a producer does not know yet: they are read again."""
        self._newer: set[str] = set()
        """Topics that were learned since the thread began to read: what it read of them may be older."""
        self._used_at: dict[str, float] = {}
        self._reading: Future[Found] | None = None
        self._tried: Tried = {}
        self._reading_for: int | None = None
        self._read_at = time.monotonic() + REFRESH_S
        self._wanted: int | None = None
        self.generation: int | None = None
        """All known topics were read when the registry had this generation, or a later one."""

    def learn(self, names: Iterable[str]) -> Found:
        """Read the topics that are not known; return them. The others are noted as used.

        Raises:
            KafkaUnavailableError: no broker replies; nothing is known about the topics.
        """
        now = time.monotonic()
        names = list(names)
        self._used_at.update(dict.fromkeys(names, now))
        missing = [name for name in names if name not in self.open and name not in self.closed]
        if not missing:
            return {}
        found = self._lookup.read(self._conn, missing)
        self._newer.update(missing)
        return found

    @property
    def is_idle(self) -> bool:
        """Whether no topic is in use: none had a message for `FORGET_S`, and none is held."""
        return not self.open and not self.closed and self._reading is None

    def rest(self) -> None:
        """Wait for what was begun, and let go of thread, connection and client until a topic is in use again."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown(wait=True, cancel_futures=True)
        if self._threads_conn is not None:
            self._threads_conn.close()
        self._lookup.rest()

    def begin(self, names: Iterable[str]) -> Future[Found]:
        """Begin to read topics again."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="topics", initializer=inherit())
        return self._thread.submit(self._read, list(names))

    def _read(self, names: list[str]) -> Found:
        if self._threads_conn is None or self._threads_conn.closed:
            self._threads_conn = self._connect()
        return self._lookup.read(self._threads_conn, names)

    def note(self, name: str, topic: Topic | Unpublishable) -> None:
        """Note what a topic is from now on."""
        if isinstance(topic, Topic):
            self.closed.pop(name, None)
            self.open[name] = topic
        else:
            self.open.pop(name, None)
            self.closed[name] = topic

    def read_anew(self, generation: int) -> None:
        """Read topics before they are used next, unless they were read at this generation of the registry."""
        if generation != self.generation:
            self.open.clear()
            self._reading = None  # what it brings may be older
        self.closed.clear()

    def expect(self, generation: int) -> None:
        """Let the known topics be read again soon, unless they were read at this generation of the registry."""
        self._wanted = generation

    def tend(self, tried: Tried, held: Collection[str] = ()) -> tuple[Found, Tried]:
        """Begin or end reading topics again; return what was read, and what was to be tried when that began.

        Args:
            tried: holds to try again; their topics are read in any case.
            held: topics that are held as such; they are not forgotten.
        """
        found: Mapping[str, Topic | Unpublishable] = {}
        now = time.monotonic()
        if self._reading is not None:
            if not self._reading.done():
                return {}, {}
            done, self._reading = self._reading, None
            try:
                found = done.result()
            except (KafkaUnavailableError, DatabaseUnreachableError, psycopg.Error) as error:
                log.warning("topics not read again; what is known stays in use", error=str(error).strip())
                self._read_at = now + AGAIN_S
            else:
                self.generation = self._reading_for
            return {name: topic for name, topic in found.items() if name not in self._newer}, self._tried
        is_behind = self._wanted != self.generation
        names = self.unlisted.union(scope.topic for scope in tried)
        if now >= self._read_at or (is_behind and now >= self._read_at - REFRESH_S + AGAIN_S):
            self._read_at = now + REFRESH_S
            self._used_at = {name: at for name, at in self._used_at.items() if now - at < FORGET_S}
            for name in {*self.open, *self.closed} - self._used_at.keys() - {*held}:
                self.open.pop(name, None)
                self.closed.pop(name, None)
            names |= self.open.keys() | self.closed.keys()
            self._reading_for = self._wanted
            if not names:
                self.generation = self._wanted
        else:
            self._reading_for = self.generation
        if names:
            self._tried = tried
            self._newer.clear()
            self._reading = self.begin(names)
        return {}, {}
