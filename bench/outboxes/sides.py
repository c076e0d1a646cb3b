"""A side of the comparison: how its database is prepared, and how it is started, filled and written to. First: ours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import psycopg

from bench.harness.relays import RelayProcess, sharded_relays
from bench.load.backlog import STATEMENTS as BACKLOG
from bench.load.generator import OUTBOX
from bench.plan import Bench
from bench.send import VARIABLES, send_statement
from outbox import Message, Outbox


class Publishing(Protocol):
    """A process that publishes."""

    @property
    def pid(self) -> int:
        """The process."""

    @property
    def peak_bytes(self) -> int:
        """Its largest resident size so far."""

    def check(self) -> None:
        """Raise when it has ended."""


class Side:
    """So many relays of ours.

    Args:
        count: how many; several lead a shard each before the backlog is committed, which is filled while they run.
    """

    way = OUTBOX
    """How the load generator writes a message."""
    fill = BACKLOG["fill"]
    """Writes a part of the backlog."""
    send_text = send_statement()
    """Writes a message in pgbench's transaction."""
    variables: Mapping[str, str] = VARIABLES
    """What pgbench's variables are in it, but for `topic`."""
    has_latency = True
    """Whether its latency and what it leaves of business transactions are measured."""

    def __init__(self, count: int = 1) -> None:
        self.name = "1 relay" if count == 1 else f"{count} relays"
        self.is_filled_while_running = count > 1
        self.has_latency = count == 1
        self._count = count

    @contextmanager
    def prepared(self, bench: Bench) -> Iterator[str]:
        """Make a database, and drop it at the end."""
        with bench.servers.database() as dsn:
            self.prepare(dsn)
            try:
                yield dsn
            finally:
                self.release(dsn)

    def prepare(self, dsn: str) -> None:
        """Make what it needs in a migrated database."""

    def release(self, dsn: str) -> None:
        """Remove what keeps its database from being dropped."""

    @contextmanager
    def draining(self, bench: Bench, dsn: str, topics: Sequence[str]) -> Iterator[Sequence[Publishing]]:
        """Run it with the settings for a backlog; it has started when the block begins."""
        if self._count > 1:
            with sharded_relays(bench.servers, dsn, self._count) as relays:
                yield relays
        else:
            with self.running(bench, dsn, topics) as relay:
                yield [relay]

    def running(self, bench: Bench, dsn: str, topics: Sequence[str]) -> AbstractContextManager[Publishing]:
        """Run it with the settings for the least latency; it has started when the block begins."""
        return RelayProcess(bench.servers, dsn)

    def send(self, conn: psycopg.Connection, topic: str) -> None:
        """Send one message."""
        Outbox("bench").send(conn, Message(topic, key="first", body=b"{}"))
