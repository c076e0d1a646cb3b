"""The embedded PostgreSQL: its own cluster, one database `outbox`, a random password, loopback only."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import psycopg
from psycopg import sql

from outbox import sessions
from outbox_local.stack.ports import LOOPBACK, Reservation
from outbox_local.stack.process import spawn
from outbox_local.stack.server import EmbeddedServer, fresh
from outbox_local.stack.state import ServerState
from outbox_local.stack.users import ServiceUser

DATABASE = "outbox"
SUPERUSER = "postgres"
"""Not `outbox`: the schema of that name would then stand in the default search path and hide a missing prefix."""


class Postgres(EmbeddedServer):
    """One PostgreSQL cluster and its postmaster."""

    title = "PostgreSQL"
    # SIGINT is the fast shutdown: sessions are ended. SIGTERM would wait for the last client to leave.
    stop_signal = signal.SIGINT
    # The immediate shutdown: the postmaster takes its backends along, which SIGKILL would not do at once.
    death_signal = signal.SIGQUIT

    def __init__(
        self, state: ServerState, log: Path, changed: Callable[[], None], user: ServiceUser | None
    ) -> None:
        """Reserve the port of the state, or any when it is taken; `user` runs the server in place of root."""
        super().__init__(state, log, changed)
        self.user = user
        self.data = Path(state.data)
        self.port = Reservation(*state.ports)
        state.ports = [self.port.port]
        state.address = self.dsn(DATABASE)

    def dsn(self, database: str) -> str:
        """Name a database of this server. The password is made of characters that a URL takes as they are."""
        return f"postgresql://{SUPERUSER}:{self.state.password}@{LOOPBACK}:{self.port.port}/{database}"

    def initialise(self) -> Iterator[None]:
        """Make the cluster next to its place and rename it there: an interrupted `initdb` leaves no half cluster."""
        if self.data.exists():
            return
        part = fresh(self.data.with_name(self.data.name + ".new"))
        secret = self.data.with_name(self.data.name + ".password")
        try:
            secret.touch(mode=0o600)
            secret.write_text(self.state.password)
            if self.user:
                os.chown(part, self.user.uid, self.user.gid)
                os.chown(secret, self.user.uid, self.user.gid)
            command: list[str | Path] = [
                Path(self.state.program) / "initdb",
                f"--pgdata={part}",
                f"--username={SUPERUSER}",
                f"--pwfile={secret}",
                "--auth=scram-sha-256",
                "--encoding=UTF8",
                "--locale=C",
            ]
            yield from self.run(command, self.user)
        finally:
            secret.unlink(missing_ok=True)
        with (part / "postgresql.conf").open("a") as file:
            file.write("include 'outbox.conf'\n")
        part.rename(self.data)

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the postmaster with today's settings."""
        self._remove_dead_lock()
        settings = self.data / "outbox.conf"
        settings.write_text((files("outbox_local.stack") / "postgres.conf").read_text())
        if self.user:
            os.chown(settings, self.user.uid, self.user.gid)
        return spawn(
            [Path(self.state.program) / "postgres", "-D", self.data, "-p", str(self.port.port)],
            log=self.log,
            death_signal=self.death_signal,
            user=self.user,
        )

    def ready(self) -> bool:
        """Return whether sessions are accepted, and make the database if this is the first time."""
        try:
            with sessions.connect(self.dsn("postgres"), connect_timeout=5) as connection:
                there = connection.execute(
                    "select from pg_database where datname = %s", [DATABASE]
                ).fetchone()
                if there is None:
                    connection.execute(sql.SQL("create database {}").format(sql.Identifier(DATABASE)))
        except psycopg.OperationalError:
            return False
        return True

    def _remove_dead_lock(self) -> None:
        """Remove a dead postmaster's lock file whose pid now belongs to a stranger, as after a reboot.

        PostgreSQL asks only whether some process has that pid and would refuse to start. Every process of
        this cluster has its data directory as working directory, a stranger has not.
        """
        lock = self.data / "postmaster.pid"
        try:
            owner = int(lock.read_text().split("\n", 1)[0])
            if not Path(f"/proc/{owner}/cwd").samefile(self.data):
                lock.unlink()
        except FileNotFoundError:
            lock.unlink(missing_ok=True)  # no such file, or no such process
