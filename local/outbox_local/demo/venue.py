"""The venue: real servers for one performance, and on them a database and a topic of its own.

`outbox shop` has the same. Nothing that was there before is touched: the database and the topic get unused names, and
are removed at the end.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka import KafkaException
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_local.demo.producer import SQL
from outbox_local.stack.api import Stack
from outbox_local.stack.lifecycle import bring_up, running_stack
from outbox_local.stack.prepare import Report, StackOptions
from outbox_migrations import api as migrations
from outbox_relay.database import connections
from outbox_relay.downloads.errors import StackError
from outbox_relay.operations import partitions, topics
from outbox_relay.operations.kafka_topics import KafkaTopics
from outbox_relay.publisher.kafka import new_admin, producer_settings
from outbox_relay.text.errors import OperatorError

PARTITIONS = 8
OWN = "its own"
"""Servers that end with the demo."""
DAYS_AHEAD = 3
DROP_S = 30.0


class VenueError(OperatorError):
    """The servers do not let the demo have a database and a topic."""


@dataclass(frozen=True, slots=True)
class Furnishing:
    """What a performance has of its own."""

    database: str
    """Before its number: `outbox_demo` for the database `outbox_demo_1`."""
    topic: str
    """Before its number."""
    message_type: str
    tables: str
    """The statements that create the business tables."""


FLIGHTS = Furnishing("outbox_demo", "flights", "FIFO", SQL["create"])


@dataclass(frozen=True, slots=True)
class Venue:
    """Where a performance takes place."""

    dsn: str
    """Of the demo's own database."""
    bootstrap_servers: str
    database: str
    topic: str
    partitions: int
    servers: str
    """Where the servers come from, for people."""
    stack: Stack | None = None
    """Whose servers can be killed and started again; None when it is not ours."""

    @property
    def environment(self) -> dict[str, str]:
        """What points every process at it."""
        return {"OUTBOX_DSN": self.dsn, "OUTBOX_BOOTSTRAP_SERVERS": self.bootstrap_servers}


@contextlib.contextmanager
def venue(
    directory: Path,
    options: StackOptions,
    *,
    keep: bool,
    report: Report,
    furnishing: Furnishing = FLIGHTS,
    own: bool = False,
) -> Iterator[Venue]:
    """Have servers, a database and a topic; they are removed again unless they are to be kept.

    Servers: those given; else those of the stack that runs in `directory`; else a stack of the demo's own, which
    ends with it (with `keep`: one in `directory`, which stays).

    Args:
        directory: of the stack that may be running.
        options: which servers are given, and where others may come from.
        keep: leave everything.
        report: gets the progress, a line at a time.
        furnishing: names and tables.
        own: do not use a stack that runs already.

    Raises:
        StackError: servers could not be had.
        VenueError: they refuse a database or a topic.
    """
    with contextlib.ExitStack() as cleanup:
        if own:
            stack = cleanup.enter_context(Stack.start(options=options, report=report))
            dsn, bootstrap_servers, servers = _places(stack, options)
        else:
            stack = None
            dsn, bootstrap_servers, servers = _servers(cleanup, directory, options, keep=keep, report=report)
        kafka = KafkaTopics(bootstrap_servers)
        number = _make_database(dsn, furnishing, taken=kafka.counts().keys())
        database, topic = f"{furnishing.database}_{number}", f"{furnishing.topic}-{number}"
        if not keep and servers != OWN:
            cleanup.callback(_drop_database, dsn, database)
            cleanup.callback(_drop_topic, bootstrap_servers, topic, report)
        # The record's time has to be the relay's: the proof places repeats by it.
        kafka.create(topic, PARTITIONS, -1, {"message.timestamp.type": "CreateTime"})
        own_dsn = make_conninfo(dsn, dbname=database)
        _furnish(own_dsn, topic, furnishing)
        report(f"database {database} and topic {topic} ({PARTITIONS} partitions) are the demo's own")
        yield Venue(own_dsn, bootstrap_servers, database, topic, PARTITIONS, servers, stack)


def _servers(
    cleanup: contextlib.ExitStack, directory: Path, options: StackOptions, *, keep: bool, report: Report
) -> tuple[str, str, str]:
    if options.dsn and options.bootstrap_servers:
        report(f"servers: given, {connections.place(options.dsn)}; Kafka at {options.bootstrap_servers}")
        return options.dsn, options.bootstrap_servers, "given"
    if not options.dsn and not options.bootstrap_servers:
        with contextlib.suppress(StackError):
            running = running_stack(directory)
            report(f"servers: the stack that runs in {directory}")
            return running.postgres.address, running.kafka.address, f"the stack in {directory}"
        if keep:
            state, _ = bring_up(directory, options, report=report)
            return state.postgres.address, state.kafka.address, f"the stack in {directory}"
    return _places(cleanup.enter_context(Stack.start(options=options, report=report)), options)


def _places(own: Stack, options: StackOptions) -> tuple[str, str, str]:
    partly = options.dsn or options.bootstrap_servers
    return own.dsn, own.bootstrap_servers, "partly given" if partly else OWN


def _make_database(dsn: str, furnishing: Furnishing, taken: Collection[str]) -> int:
    """Create the first database for which neither the database nor the topic is there; answer n."""
    with connections.connect(dsn, application_name="outbox demo") as admin:
        for number in itertools.count(1):
            if f"{furnishing.topic}-{number}" in taken:
                continue
            name = sql.Identifier(f"{furnishing.database}_{number}")
            try:
                admin.execute(sql.SQL("create database {} template template0 encoding 'UTF8'").format(name))
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                continue
            except psycopg.errors.InsufficientPrivilege as error:
                raise VenueError(
                    f"the demo makes a database of its own and may not: {error.diag.message_primary}\n"
                    "use a role with CREATEDB, or no --dsn: then the demo starts a PostgreSQL of its own"
                ) from None
            return number
    raise AssertionError("the numbers do not end")


def _drop_database(dsn: str, name: str) -> None:
    with connections.connect(dsn, application_name="outbox demo") as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _drop_topic(bootstrap_servers: str, topic: str, report: Report) -> None:
    admin = new_admin(producer_settings(bootstrap_servers))
    try:
        admin.delete_topics([topic], operation_timeout=DROP_S)[topic].result(DROP_S + 5)
    except (KafkaException, TimeoutError) as error:
        report(f"topic {topic} could not be removed, it is yours to delete: {error}")


def _furnish(dsn: str, topic: str, furnishing: Furnishing) -> None:
    """Bring the outbox's schema, the business tables and the topic's registration."""
    migrations.upgrade(dsn)
    with connections.connect(dsn, application_name="outbox demo") as conn:
        partitions.ensure(conn, DAYS_AHEAD)
        conn.execute(furnishing.tables)
        topics.add(
            conn,
            topic,
            message_type=furnishing.message_type,
            partitions=PARTITIONS,
            selector=None,
            max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES,
        )
