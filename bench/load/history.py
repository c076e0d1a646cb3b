"""A history to be exported: messages of thousands of transactions, half messages with their events, publications."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg

from bench.harness.relays import WATCH, Recorded, RelayProcess
from bench.harness.servers import Servers
from outbox.statements import Statements

STATEMENTS = Statements("bench/sql/export.sql")
TRANSACTION = 1_000
SESSIONS = 3
HALF_EVERY = 20
"""Every twentieth transaction writes half messages: one message in twenty."""
RANGE = 100_000
"""Ids whose publications one statement records."""
EPOCH = 1_000_000
"""Of the publications that no relay made; a relay's own epochs are far below."""
LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows in PostgreSQL."""

    messages: int
    publications: int
    """Published messages; a row of the table holds a thousand."""
    events: int

    @property
    def rows(self) -> int:
        """Rows that an export writes."""
        return self.messages + self.publications + self.events


class History:
    """The history in one database; it only grows."""

    def __init__(
        self, servers: Servers, dsn: str, topic: str, *, relayed: int, has_index_keys: bool = False
    ) -> None:
        self._servers, self._dsn, self._topic, self._relayed = servers, dsn, topic, relayed
        self._index_key = "order-" if has_index_keys else None
        self._written = 0
        self.in_kafka = True
        """Whether a relay has published all of it."""

    def grow(self, messages: int) -> None:
        """Write until there are so many; up to `relayed` a relay publishes them, then on paper only."""
        first, self._written = self._written + 1, max(messages, self._written)
        self._ask("partitions")
        if self._written <= self._relayed:
            with RelayProcess(self._servers, self._dsn) as relay:
                self._fill(first)
                self._wait(relay)
        else:
            self.in_kafka = False
            before = self._newest()
            self._fill(first)
            self._publish(before + 1, self._newest())
        self._ask("settle")
        self._servers.settle()

    def decide_late(self, most: int) -> int:
        """Roll back half messages all over the history; answer how many."""
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            return conn.execute(STATEMENTS["decide_late"], {"most": most}).rowcount

    def counts(self) -> Counts:
        """What there is."""
        return Counts(*self._ask("counts"))

    def bytes(self) -> int:
        """The size of the database."""
        return int(self._ask("size")[0])

    def _wait(self, relay: RelayProcess) -> None:
        """Wait until all that is committed is published."""
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            Recorded(conn).wait(relay, int(self._ask("committed")[0]), LIMIT)

    def _newest(self) -> int:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            row = conn.execute(WATCH["newest"]).fetchone()
        return int(row[0]) if row else 0

    def _ask(self, name: str) -> tuple[Any, ...]:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            cursor = conn.execute(STATEMENTS[name])
            row = cursor.fetchone() if cursor.description else None
        return row or ()

    def _fill(self, first: int) -> None:
        starts = range(first, self._written + 1, TRANSACTION)

        def session(conn: psycopg.Connection, number: int) -> None:
            group = f"bench-half-{number}"
            for place in range(number, len(starts), SESSIONS):
                given: dict[str, Any] = {"topic": self._topic, "first": starts[place], "group": group}
                given["index_key"] = self._index_key
                given["last"] = min(starts[place] + TRANSACTION - 1, self._written)
                if place % HALF_EVERY != HALF_EVERY // 2:
                    conn.execute(STATEMENTS["fill"], given)
                    continue
                row = conn.execute(STATEMENTS["halves"], given).fetchone()
                given["first"], given["last"] = row or (0, 0)
                with conn.transaction():
                    conn.execute(STATEMENTS["checks"], given)
                    conn.execute(STATEMENTS["decide"], given)

        self._in_sessions(session)

    def _publish(self, first: int, last: int) -> None:
        def session(conn: psycopg.Connection, number: int) -> None:
            for lower in range(first + number * RANGE, last + 1, SESSIONS * RANGE):
                given = {"epoch": EPOCH, "first": lower, "last": min(lower + RANGE - 1, last)}
                conn.execute(STATEMENTS["publish"], given)

        self._in_sessions(session)

    def _in_sessions(self, work: Callable[[psycopg.Connection, int], None]) -> None:
        """Several sessions at once, which wait for no flush: that says nothing about the export."""

        def session(number: int) -> None:
            with psycopg.connect(
                self._dsn, autocommit=True, options="-c synchronous_commit=off -c work_mem=64MB"
            ) as conn:
                work(conn, number)

        with ThreadPoolExecutor(SESSIONS) as threads:
            list(threads.map(session, range(SESSIONS)))
