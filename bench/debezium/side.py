"""Debezium as a side of the comparison: its outbox event router in a Kafka Connect of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import psycopg

from bench.debezium.connect import STATEMENTS, Connect, drop_slot
from bench.load.generator import DEBEZIUM
from bench.outboxes.sides import Publishing, Side
from bench.plan import Bench


class Connector(Side):
    """Debezium.

    Args:
        name: what the tables call it.
        jars: the directory of its jars.
        draining: settings for a backlog, next to those that it needs.
        at_once: settings for the least latency; None: it is not measured.
    """

    way = DEBEZIUM
    fill = STATEMENTS["fill"]
    send_text = STATEMENTS["send"] % (":topic", ":account", ":body")

    def __init__(
        self, name: str, jars: Path, draining: Mapping[str, str], at_once: Mapping[str, str] | None = None
    ) -> None:
        super().__init__()
        self.name = name
        self.has_latency = at_once is not None
        self._jars = jars
        self._draining = draining
        self._at_once = at_once
        self._directories: dict[str, Path] = {}

    def prepare(self, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(STATEMENTS["table"])
            conn.execute(STATEMENTS["publication"])

    def release(self, dsn: str) -> None:
        drop_slot(dsn)

    @contextmanager
    def draining(self, bench: Bench, dsn: str, topics: Sequence[str]) -> Iterator[Sequence[Publishing]]:
        with self._connect(bench, dsn, self._draining) as connect:
            yield [connect]

    def running(self, bench: Bench, dsn: str, topics: Sequence[str]) -> AbstractContextManager[Publishing]:
        return self._connect(bench, dsn, self._at_once or {})

    def _connect(self, bench: Bench, dsn: str, settings: Mapping[str, str]) -> Connect:
        """Return a connector; the offsets of an earlier run in this database are there."""
        if dsn not in self._directories:
            self._directories[dsn] = Path(mkdtemp(dir=bench.servers.directory, prefix="debezium-"))
        return Connect(bench.servers, self._jars, dsn, self._directories[dsn], settings)

    def send(self, conn: psycopg.Connection, topic: str) -> None:
        conn.execute(STATEMENTS["send"], (topic, "first", b"{}"))
