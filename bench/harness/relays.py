"""The relay under test: a real process of `outbox relay run`, with its CPU and memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from bench.harness.cpu import peak_bytes
from bench.harness.servers import Servers
from outbox.statements import Statements
from outbox_local.stack.process import spawn

WATCH = Statements("bench/sql/watch.sql")
START_LIMIT = 20.0
STOP_LIMIT = 30.0
JOIN_LIMIT = 120.0
LANES = 8
"""How many the migrations make."""


class RelayProcess:
    """One relay with its default options; some relay owns lanes when the `with` block begins.

    Args:
        servers: where it works.
        dsn: its database.
        others: databases that it serves, too.
        shard: what it leads.
    """

    def __init__(self, servers: Servers, dsn: str, *others: str, shard: str = "1/1") -> None:
        self.log: Path = servers.directory / "logs" / "relay.log"
        self._dsn = dsn
        self.began = time.time()
        self._is_killed = False
        self._process: subprocess.Popen[bytes] = spawn(
            [
                *(sys.executable, "-m", "outbox_relay.cli.main", "relay", "run"),
                *(part for each in (dsn, *others) for part in ("--dsn", each)),
                *("--bootstrap-servers", servers.bootstrap_servers),
                *("--shard", shard),
            ],
            log=self.log,
            death_signal=signal.SIGKILL,
        )

    @property
    def pid(self) -> int:
        """The process, for a `Meter`."""
        return self._process.pid

    @property
    def peak_bytes(self) -> int:
        """The relay's largest resident size so far."""
        return peak_bytes(self.pid)

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, when the relay has ended."""
        if self._process.poll() is not None:
            end = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the relay ended with code {self._process.returncode}:\n{end}")

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal; after SIGKILL its end is no failure."""
        self._is_killed |= number == signal.SIGKILL
        self._process.send_signal(number)

    def stop(self) -> None:
        """End it by SIGTERM, and wait; nothing happens when it has ended well.

        Raises:
            RuntimeError: it failed, or did not stop in time and was killed.
        """
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise RuntimeError(f"the relay did not stop within {STOP_LIMIT:.0f} s") from None
        if self._process.returncode != 0 and not self._is_killed:
            self.check()

    def __enter__(self) -> Self:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                deadline = time.monotonic() + START_LIMIT
                while not conn.execute(WATCH["owned"]).fetchone():
                    self.check()
                    if time.monotonic() > deadline:
                        raise TimeoutError(
                            f"the relay took no lanes within {START_LIMIT:.0f} s (log: {self.log})"
                        )
                    time.sleep(0.005)
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except RuntimeError:
            if error is None:
                raise


class Recorded:
    """How many messages relays have recorded."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self._conn = conn
        self._last = (0, 0, 0)
        self.messages = 0
        self.read()

    def read(self) -> int:
        """Count what was recorded since the last call; return how many messages are."""
        values = dict(zip(("epoch", "batch", "lo"), self._last, strict=True))
        for *record, messages in self._conn.execute(WATCH["records_behind"], values):
            self._last = tuple(record)
            self.messages += messages
        return self.messages

    def wait(self, relay: RelayProcess, messages: int, limit: float) -> None:
        """Wait until so many messages are recorded in all; it happens as Kafka acknowledges them, in any order.

        Raises:
            TimeoutError: it took longer than `limit` seconds.
        """
        deadline = time.monotonic() + limit
        while self.read() < messages:
            relay.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.messages} of {messages} messages are recorded after {limit:.0f} s")
            time.sleep(0.02)


@contextmanager
def sharded_relays(servers: Servers, dsn: str, count: int) -> Iterator[list[RelayProcess]]:
    """Run so many relays; each leads a shard when the block begins."""
    with _relays(servers, dsn, [f"{number + 1}/{count}" for number in range(count)], count) as relays:
        yield relays


@contextmanager
def leader_and_standbys(servers: Servers, dsn: str, count: int) -> Iterator[list[RelayProcess]]:
    """Run so many relays; the first one leads when the block begins, and the others stand by."""
    with _relays(servers, dsn, ["1/1"] * count, 1) as relays:
        yield relays


@contextmanager
def _relays(servers: Servers, dsn: str, shards: list[str], leaders: int) -> Iterator[list[RelayProcess]]:
    with ExitStack() as stack:
        relays = [stack.enter_context(RelayProcess(servers, dsn, shard=shard)) for shard in shards]
        with psycopg.connect(dsn, autocommit=True) as conn:
            deadline = time.monotonic() + JOIN_LIMIT
            while conn.execute(WATCH["joined"]).fetchone() != (len(shards), leaders, LANES):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{len(shards)} relays do not lead all lanes within {JOIN_LIMIT:.0f} s"
                    )
                time.sleep(0.02)
        yield relays
