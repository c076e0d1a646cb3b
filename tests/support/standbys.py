"""Physical standbys of the private PostgreSQL, for tests, and one address that leads to whichever server is wanted."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from outbox_local.stack.api import Stack
from outbox_local.stack.ports import LOOPBACK, Reservation
from outbox_local.stack.process import spawn
from outbox_local.stack.users import postgres_user
from tests.support.plain_inserts import connect
from tests.support.publications import value
from tests.support.waiting import wait_until


@contextmanager
def standby(stack: Stack, dsn: str) -> Iterator[str]:
    """A standby of the stack's PostgreSQL that follows it while the block runs; answer the DSN of `dsn` there."""
    process, user = stack.process("postgres"), postgres_user()
    assert process is not None, "PostgreSQL is not embedded"
    programs = Path(f"/proc/{process.pid}/exe").resolve().parent
    with connect(dsn) as conn:
        place = Path(value(conn, "SHOW data_directory")).parent
    data, port = Path(tempfile.mkdtemp(prefix="standby-", dir=place)), Reservation()
    try:
        data.chmod(0o700)
        if user:
            os.chown(data, user.uid, user.gid)
        subprocess.run(
            [programs / "pg_basebackup", f"--pgdata={data}", f"--dbname={dsn}", "--checkpoint=fast",
             "--wal-method=stream", "--write-recovery-conf"],
            check=True, cwd="/", user=user.uid if user else None, group=user.gid if user else None,
            extra_groups=[] if user else None,
        )  # fmt: skip
        command: list[str | Path] = [programs / "postgres", "-D", data, "-p", str(port.port)]
        server = spawn(command, log=data / "server.log", death_signal=signal.SIGQUIT, user=user)
        try:
            there = at(dsn, port.port)
            wait_until(lambda: _serves(there), "the standby to serve")
            yield there
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(60)
    finally:
        port.release()
        shutil.rmtree(data)


def at(dsn: str, port: int) -> str:
    """The same database at another port of this machine."""
    parts = urlsplit(dsn)
    return urlunsplit(parts._replace(netloc=f"{parts.netloc.rpartition('@')[0]}@{LOOPBACK}:{port}"))


def has_replayed(standby_dsn: str, primary_dsn: str) -> bool:
    """Whether the standby has come to where the primary is."""
    with connect(primary_dsn) as primary, connect(standby_dsn) as there:
        written = value(primary, "SELECT pg_current_wal_flush_lsn()")
        return bool(value(there, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [written]))


def _serves(dsn: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), connect(dsn):
        return True
    return False


class Crossing:
    """One address that leads to several servers, as a pooler or a list of hosts does; each session to `port`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._listener = socket.create_server((LOOPBACK, 0))
        self.address: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more sessions."""
        # (Closing alone would leave the thread in accept.)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                there = socket.create_connection((LOOPBACK, self.port))
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=_forward, args=(one, other), daemon=True).start()


def _forward(one: socket.socket, other: socket.socket) -> None:
    """Hand on what comes, and the end of it; who reads last closes."""
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    with contextlib.suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
