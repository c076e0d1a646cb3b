"""The servers of one run: a private PostgreSQL and Kafka below a temporary directory, with their processes."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from outbox_local.stack.api import Stack
from outbox_local.stack.choice import AllowedOrigins
from outbox_local.stack.lifecycle import bring_down
from outbox_local.stack.prepare import StackOptions
from outbox_local.stack.state import ServerState, State
from outbox_migrations.api import upgrade
from outbox_relay.operations.kafka_topics import KafkaTopics

Say = Callable[[str], None]
"""Told one line of progress at a time."""


@dataclass(frozen=True, slots=True)
class Servers:
    """Two running servers of our own."""

    directory: Path
    postgres: ServerState
    kafka: ServerState

    @property
    def pids(self) -> dict[str, int]:
        """The servers' processes, for a `Meter`."""
        found = {}
        for name, server in (("postgres", self.postgres), ("kafka", self.kafka)):
            if server.process is None:
                raise RuntimeError(f"{name} does not run")
            found[name] = server.process.pid
        return found

    @property
    def bootstrap_servers(self) -> str:
        """The broker's address."""
        return self.kafka.address

    @property
    def data_device(self) -> Path:
        """A directory that we may write to on the file system of PostgreSQL's data."""
        return Path(self.postgres.data).parent

    def program(self, name: str) -> Path:
        """One of PostgreSQL's programs, such as pgbench."""
        return Path(self.postgres.program) / name

    def topic(self, partitions: int, **settings: str) -> str:
        """Make a topic of a new name, with settings as `retention_ms="1000"`; it can be used when this returns."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        KafkaTopics(self.bootstrap_servers).create(
            name, partitions, 1, {key.replace("_", "."): value for key, value in settings.items()}
        )
        return name

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make a migrated database, answer its DSN, and drop it at the end, whoever is connected."""
        name = f"bench_{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.postgres.address, autocommit=True) as admin:
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
            dsn = urlunsplit(urlsplit(self.postgres.address)._replace(path=f"/{name}"))
            try:
                upgrade(dsn)
                yield dsn
            finally:
                admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))

    def settle(self) -> None:
        """Write out what is dirty, so that no round pays for the one before it."""
        with psycopg.connect(self.postgres.address, autocommit=True) as admin:
            admin.execute("checkpoint")


@contextmanager
def running_servers(say: Say) -> Iterator[Servers]:
    """Start both servers; at the end they are gone, and so is their data. They also end if this process dies."""
    directory = Path(tempfile.mkdtemp(prefix="outbox-bench-"))
    directory.chmod(0o711)  # PostgreSQL's user passes through to its data
    try:
        with Stack.start(directory, options=StackOptions(origins=AllowedOrigins.EMBEDDED), report=say):
            state = State.load(directory)
            if state is None:
                raise RuntimeError(f"the stack in {directory} has no state")
            yield Servers(directory, state.postgres, state.kafka)
    finally:
        bring_down(directory, with_data=True)
