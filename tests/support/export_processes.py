"""Runs of the export as processes of their own, with Java below them: held where they read, killed, listened to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from psycopg import sql

from tests.support.plain_inserts import Connection, connect
from tests.support.refused_jobs import waiting
from tests.support.small_spark import SMALL
from tests.support.waiting import wait_until

SESSIONS = """
    SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox-etl' AND datname = current_database()
"""

LEAVES = """
    SELECT c.relname
    FROM unnest(%s::regclass[]) t (root), pg_partition_tree(t.root) p JOIN pg_class c ON c.oid = p.relid
    WHERE p.isleaf ORDER BY 1
"""

TOAST = """
    SELECT toast.relname
    FROM unnest(%s::regclass[]) t (root), pg_partition_tree(t.root) p
    JOIN pg_class c ON c.oid = p.relid JOIN pg_class toast ON toast.oid = c.reltoastrelid
    WHERE p.isleaf ORDER BY 1
"""


class Run:
    """`outbox etl …`, and whatever it starts."""

    def __init__(self, dsn: str, log: Path, command: str, *options: str) -> None:
        self._dsn, self._log = dsn, log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "outbox_relay", "etl", command, *SMALL, *options],
                stdout=out,
                stderr=out,
                env={**os.environ, "PGOPTIONS": "", "OUTBOX_DSN": dsn},
            )

    @property
    def log(self) -> str:
        """What it has said and answered so far."""
        return self._log.read_text(errors="replace")

    def all(self) -> list[int]:
        """Its processes: the command, the job, Java, and Java's own."""
        return [self._process.pid, *below(self._process.pid)]

    def java(self) -> list[int]:
        """The Java that is the driver."""
        return [pid for pid in self.all() if b"org.apache.spark.deploy.SparkSubmit" in command_line(pid)]

    def job(self) -> list[int]:
        """The Python process that drives Java."""
        return [pid for pid in self.all() if b"outbox_relay.warehouse.job" in command_line(pid)]

    def wait_until_it_says(self, text: str) -> None:
        """Wait for a line of its progress."""
        wait_until(lambda: text in self.log or self._has_ended(), text)
        assert text in self.log, self.log

    def wait_until_it_waits(self, conn: Connection) -> None:
        """Wait until it reads what somebody has locked."""
        wait_until(lambda: waiting(conn) > 0 or self._has_ended(), "a read that waits")
        assert not self._has_ended(), self.log

    def kill(self, pids: Sequence[int]) -> int:
        """Kill these of its processes at once, wait until all are gone with their sessions; answer the exit code."""
        processes = self.all()
        assert set(pids) <= set(processes)
        assert pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        code = self._process.wait(60)
        wait_until(lambda: not any(map(alive, processes)), f"the end of {processes}")
        return code

    def code(self) -> int:
        """Its exit code, when it has ended."""
        return self._process.wait(180)

    def end(self) -> None:
        """End whatever is left of it."""
        for pid in self.all() if not self._has_ended() else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def _has_ended(self) -> bool:
        return self._process.poll() is not None


@contextlib.contextmanager
def running(dsn: str, log: Path, command: str, *options: str) -> Iterator[Run]:
    """Start a command of the export; nothing of it is left after the block."""
    run = Run(dsn, log, command, *options)
    try:
        yield run
    finally:
        run.end()


@contextlib.contextmanager
def unread(dsn: str, *tables: str) -> Iterator[Connection]:
    """Keep everybody from reading rows of these tables of the outbox, or of single partitions.

    Their indexes are locked, which every reader opens. The tables are not: looking which partitions there are, as a run
    does before it reads, would wait for that already.
    """
    with connect(dsn) as conn:
        conn.execute("BEGIN")
        for (name,) in conn.execute(LEAVES, [[f"outbox.{table}" for table in tables]]).fetchall():
            conn.execute(sql.SQL("REINDEX TABLE {}").format(sql.Identifier("outbox", name)))
        try:
            yield conn
        finally:
            conn.execute("ROLLBACK")


@contextlib.contextmanager
def held_in_mid_read(dsn: str, table: str) -> Iterator[Connection]:
    """Hold every task that reads a large value of this table of the outbox, and let everybody plan.

    The indexes of the TOAST tables are locked. Planning a statement, as the driver does to learn the columns, opens
    none of them. Each partition needs a row with a value that is stored there: some kilobytes, not compressible.
    """
    with connect(dsn) as conn:
        conn.execute("BEGIN")
        for (name,) in conn.execute(TOAST, [[f"outbox.{table}"]]).fetchall():
            conn.execute(sql.SQL("REINDEX TABLE {}").format(sql.Identifier("pg_toast", name)))
        try:
            yield conn
        finally:
            conn.execute("ROLLBACK")


def wait_until_sessions_are_gone(conn: Connection) -> None:
    """Wait until PostgreSQL has noticed that its clients are dead: with their sessions, their locks go."""
    wait_until(lambda: conn.execute(SESSIONS).fetchone() == (0,), "the end of the sessions of a dead run")


def below(pid: int) -> list[int]:
    """The processes that a process has started, and theirs."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for child in map(int, task.read_text().split()):
                found += [child, *below(child)]
    return found


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_line(pid: int) -> bytes:
    """The command line of a process; empty when it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
