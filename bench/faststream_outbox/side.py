"""faststream-outbox as a side of the comparison: its relay to Kafka in a process of its own."""

from __future__ import annotations

import json
import signal
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import psycopg

from bench.faststream_outbox.table import KEY, create
from bench.harness.program import Program
from bench.load.generator import FASTSTREAM, faststream_headers
from bench.outboxes.sides import Publishing, Side
from bench.plan import Bench
from bench.send import VARIABLES
from outbox.statements import Statements
from outbox_local.stack.process import spawn

STATEMENTS = Statements("bench/sql/faststream_outbox.sql")
VERSION = version("faststream-outbox")
DEFAULT: dict[str, Any] = {}
TUNED: dict[str, Any] = {
    "max_workers": 32,
    "fetch_batch_size": 1_000,
    "terminal_flush_batch_size": 100,
    "min_fetch_interval": 0.05,
    "max_fetch_interval": 1.0,
}
"""Best of what was tried: 8, 32, 64 and 128 workers, pages of 500 to 2,000, `linger_ms` of 0, 1 and 5, aiokafka."""


@dataclass(slots=True)
class Application(Program):
    """The program of `bench.faststream_outbox.app`; with the block its process ends, as by SIGTERM of a deployment."""

    title = "faststream-outbox"
    dsn: str
    bootstrap_servers: str
    topics: Sequence[str]
    subscriber: Mapping[str, Any]
    log: Path

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, when the process has ended."""
        if self._running.poll() is not None:
            end = self.log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"faststream-outbox ended with code {self._running.returncode}:\n{end}")

    def __enter__(self) -> Self:
        arguments = {
            "dsn": self.dsn,
            "bootstrap_servers": self.bootstrap_servers,
            "topics": [*self.topics],
            "subscriber": {**self.subscriber},
        }
        self._process = spawn(
            [sys.executable, "-m", "bench.faststream_outbox.app", json.dumps(arguments)],
            log=self.log,
            death_signal=signal.SIGKILL,
        )
        return self


class FaststreamOutbox(Side):
    """faststream-outbox.

    Args:
        name: what the tables call it.
        subscriber: options of its subscriber.
        has_latency: whether its latency and what it leaves of business transactions are measured.
    """

    way = FASTSTREAM
    fill = STATEMENTS["fill"]
    send_text = STATEMENTS["send"] % (":topic", ":body", ":row_headers")
    variables: Mapping[str, str] = VARIABLES | {
        "row_headers": faststream_headers("order-1", uuid.UUID(int=1))
    }

    def __init__(self, name: str, subscriber: Mapping[str, Any], *, has_latency: bool) -> None:
        super().__init__()
        self.name = name
        self.has_latency = has_latency
        self._subscriber = subscriber

    def prepare(self, dsn: str) -> None:
        create(dsn)

    @contextmanager
    def draining(self, bench: Bench, dsn: str, topics: Sequence[str]) -> Iterator[Sequence[Publishing]]:
        with self.running(bench, dsn, topics) as application:
            yield [application]

    def running(self, bench: Bench, dsn: str, topics: Sequence[str]) -> AbstractContextManager[Publishing]:
        return Application(
            dsn,
            bench.servers.bootstrap_servers,
            topics,
            self._subscriber,
            bench.servers.directory / "logs" / "faststream-outbox.log",
        )

    def send(self, conn: psycopg.Connection, topic: str) -> None:
        conn.execute(STATEMENTS["send"], (topic, b"{}", json.dumps({KEY: "first"})))
