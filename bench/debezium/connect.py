"""Kafka Connect, standalone, with Debezium's connector: one process, on loopback, gone at the end."""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psycopg

from bench.debezium.settings import connector, worker
from bench.harness.command import stop
from bench.harness.program import Program
from bench.harness.servers import Servers
from outbox.statements import Statements
from outbox_local.stack.ports import Reservation
from outbox_local.stack.process import spawn

STATEMENTS = Statements("bench/sql/debezium.sql")
MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
HEAP = "1g"
START_LIMIT = 90.0
DROP_LIMIT = 10.0


@dataclass(slots=True)
class Connect(Program):
    """The connector of one database; it streams when the `with` block begins, and keeps its offsets from run to run.

    Args:
        servers: where it reads and writes.
        jars: the directory of its jars.
        dsn: the database, with the table and the publication.
        directory: of its files; where the offsets of an earlier run are, it goes on.
        settings: of the connector, and of its producer with the prefix `producer.override.`.
    """

    title = "Kafka Connect"
    servers: Servers
    jars: Path
    dsn: str
    directory: Path
    settings: Mapping[str, str]
    _port: int = field(default=0, init=False)

    @property
    def _log(self) -> Path:
        return self.directory / "connect.log"

    def start(self) -> None:
        """Start the process; it may take seconds until it streams."""
        reservation = Reservation()
        self._port = reservation.port
        reservation.release()
        files = {
            "worker.properties": worker(self.servers.bootstrap_servers, self._port, self.directory),
            "connector.properties": connector(self.dsn, self.settings),
        }
        for name, values in files.items():
            path = self.directory / name
            path.touch(mode=0o600)
            path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        self._process = spawn(
            [
                *(self.servers.kafka.program, f"-Xms{HEAP}", f"-Xmx{HEAP}", "-cp", f"{self.jars}/*"),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                MAIN,
                *(self.directory / name for name in files),
            ],
            log=self._log,
            death_signal=signal.SIGKILL,
        )

    def wait_running(self) -> None:
        """Wait until its task runs."""
        deadline = time.monotonic() + START_LIMIT
        while self._state() != "RUNNING":
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"Debezium does not run after {START_LIMIT:.0f} s:\n{self._said()}")
            time.sleep(0.05)

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, when the process or its task has ended."""
        if self._running.poll() is not None or self._state() == "FAILED":
            raise RuntimeError(f"Debezium has ended:\n{self._said()}")

    def _state(self) -> str | None:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/connectors/bench/status", timeout=5
            ) as reply:
                tasks = json.load(reply)["tasks"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None
        return str(tasks[0]["state"]) if tasks else None

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_running()
        except BaseException:
            stop(self._running)
            raise
        return self


def drop_slot(dsn: str) -> None:
    """Drop the replication slot once PostgreSQL has noticed that the connector is gone."""
    deadline = time.monotonic() + DROP_LIMIT
    with psycopg.connect(dsn, autocommit=True) as conn:
        while conn.execute(STATEMENTS["drop_slot"]).fetchone() is None and time.monotonic() < deadline:
            time.sleep(0.05)
