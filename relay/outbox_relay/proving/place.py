"""The place of a run: a database, a topic and consumer groups of its own on the user's servers, made and removed again.

Why a database: the outbox's schema is always called `outbox`, so one for trial next to a real one needs a database of
its own. Nothing that was there before is touched. The database comes first and goes last, with a note of what belongs
to it, so that a run which is killed leaves nothing that the next one does not find.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox.wire import DEFAULT_MAX_MESSAGE_BYTES
from outbox_migrations import api as migrations
from outbox_relay.database import connections
from outbox_relay.operations import groups, partitions, topics
from outbox_relay.operations.kafka_admin import admin_of_command
from outbox_relay.operations.kafka_topics import KafkaTopics
from outbox_relay.proving.workload import PROOF_GROUP, SQL
from outbox_relay.publisher.kafka import readable
from outbox_relay.text.errors import OperatorError

PARTITIONS = 6
DAYS_AHEAD = 2
KAFKA_S = 30.0
WAIT_S = 0.5
NAME = "outbox prove"
"""As which our own sessions are found."""
Report = Callable[[str], None]


class PlaceError(OperatorError):
    """The servers do not let a run have what it needs; the text names what to do."""


@dataclass(frozen=True, slots=True)
class Servers:
    """The user's deployment."""

    dsn: str
    bootstrap_servers: str
    kafka: Mapping[str, str]

    def connect(self, database: str | None = None) -> connections.Connection:
        """Open a connection in autocommit, to another database of the server if one is named."""
        dsn = self.dsn if database is None else make_conninfo(self.dsn, dbname=database)
        return connections.connect(dsn, application_name=NAME)

    def admin(self) -> AdminClient:
        """Make an admin client of Kafka."""
        return admin_of_command(self.bootstrap_servers, self.kafka)

    def topics(self) -> KafkaTopics:
        """Make what reads and creates topics."""
        return KafkaTopics(self.bootstrap_servers, self.kafka)


@dataclass(frozen=True, slots=True)
class Belongings:
    """What belongs to a run, as the note on its database has it."""

    database: str
    topic: str
    relay_groups: str = ""
    """How the consumer groups begin in which relays number their batches (exactly-once); empty: not known yet."""
    roles: tuple[str, ...] = ()
    """Roles without login that the migrations added to the cluster."""

    @classmethod
    def of(cls, seed: int) -> Belongings:
        """Name what a run of this seed has."""
        name = f"outbox-prove-{seed}"
        return cls(f"outbox_prove_{seed}", name)

    @property
    def group(self) -> str:
        """The consumer group of the inbox."""
        return self.topic

    def note(self) -> str:
        """Return the note on the database."""
        found = {"topic": self.topic, "relay_groups": self.relay_groups, "roles": self.roles}
        return f"made by outbox prove, which removes it: {json.dumps(found)}"

    @classmethod
    def noted(cls, database: str, note: str | None) -> Belongings | None:
        """Read the note; None: it is not ours."""
        head, _, text = (note or "").partition(": ")
        if head != "made by outbox prove, which removes it":
            return None
        found = json.loads(text)
        return cls(database, found["topic"], found["relay_groups"], tuple(found["roles"]))


def requirements(servers: Servers, own: Belongings) -> list[str]:
    """Find out whether a run can have its place; return what else is on the servers, in sentences.

    Raises:
        PlaceError: it cannot; nothing was made.
    """
    with servers.connect() as conn:
        if not _value(conn, "may_create"):
            user = conn.info.user
            raise PlaceError(
                f"the run needs a database of its own, and {user} may not create one\n"
                f'grant it: ALTER ROLE "{user}" CREATEDB; or give another user with --dsn'
            )
        taken = [name for name, _, _ in conn.execute(SQL["databases"]).fetchall()]
        running = 0
        with contextlib.suppress(psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege):
            running = _value(conn, "relays")
    if own.database in taken:
        raise PlaceError(
            f"the database {own.database} exists already\nchoose another --seed, or remove what earlier runs left: "
            "outbox prove --clean"
        )
    if own.topic in servers.topics().counts():
        raise PlaceError(
            f"Kafka has a topic {own.topic} already, and no run made it on this PostgreSQL\n"
            "choose another --seed, or delete the topic if it is yours"
        )
    if not running:
        return []
    text = f"{running} relays publish" if running > 1 else "a relay publishes"
    return [
        f"{text} for the outbox in {connections.place(servers.dsn)}: it is not touched, and shares the servers"
    ]


@contextlib.contextmanager
def furnished(servers: Servers, own: Belongings, report: Report) -> Iterator[str]:
    """Make database, schema and topic; yield the database's connection string, and remove everything at the end.

    Raises:
        PlaceError, TopicError: the servers refuse; what was made until then is removed.
    """
    with servers.connect() as conn:
        before = {name for (name,) in conn.execute(SQL["roles"]).fetchall()}
        _create_database(conn, own.database)
    try:
        # Kept until the database goes: without it another run would take this one for one that was killed.
        guard = servers.connect(own.database)
    except BaseException:
        remove(servers, own, report)
        raise
    with contextlib.closing(guard) as conn:
        try:
            _write_note(conn, own)
            dsn = make_conninfo(servers.dsn, dbname=own.database)
            migrations.upgrade(dsn)
            added = {name for (name,) in conn.execute(SQL["roles"]).fetchall()} - before
            row = conn.execute(SQL["identity"]).fetchone()
            prefix = f"outbox-{row[0]}-{row[1]}-" if row else ""
            own = replace(own, relay_groups=prefix, roles=tuple(sorted(added)))
            _write_note(conn, own)
            # The record's time has to be the relay's: repeats are placed by it.
            servers.topics().create(own.topic, PARTITIONS, -1, {"message.timestamp.type": "CreateTime"})
            partitions.ensure(conn, DAYS_AHEAD)
            conn.execute(SQL["create"])
            _register(conn, own.topic)
            report(f"made database {own.database} and topic {own.topic} ({PARTITIONS} partitions)")
            yield dsn
        finally:
            remove(servers, own, report)


def _register(conn: connections.Connection, topic: str) -> None:
    topics.add(
        conn,
        topic,
        message_type="MIXED",
        partitions=PARTITIONS,
        selector=None,
        max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES,
    )
    settings = {
        "check_after": timedelta(seconds=1),
        "check_interval": timedelta(seconds=1),
        "callback": {"kind": "sql", "query": SQL["ask"]},
    }
    groups.change(conn, PROOF_GROUP, settings)


def left_behind(servers: Servers) -> list[Belongings]:
    """Find what runs have left that were killed; those that still run are left out."""
    with servers.connect() as conn:
        rows = conn.execute(SQL["databases"]).fetchall()
    found = [Belongings.noted(name, note) for name, note, running in rows if not running]
    return [one for one in found if one is not None]


def remove(servers: Servers, own: Belongings, report: Report) -> None:
    """Remove topic, groups, database and roles, in this order; report what could not be removed."""
    _remove_from_kafka(servers, own, report)
    with servers.connect() as conn:
        conn.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(own.database)))
        for role in own.roles:
            # Kept by another database of the server that was given the schema meanwhile.
            with contextlib.suppress(
                psycopg.errors.DependentObjectsStillExist, psycopg.errors.UndefinedObject
            ):
                conn.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))
    report(f"removed database {own.database} and topic {own.topic}")


def _remove_from_kafka(servers: Servers, own: Belongings, report: Report) -> None:
    admin = servers.admin()
    if own.topic in servers.topics().counts():
        deleted = admin.delete_topics([own.topic], operation_timeout=KAFKA_S)
        _removed(deleted[own.topic], f"topic {own.topic}", report)
    known = {one.group_id for one in admin.list_consumer_groups().result(KAFKA_S).valid}
    mine = {name for name in known if own.relay_groups and name.startswith(own.relay_groups)}
    deadline = time.monotonic() + KAFKA_S
    for group in sorted(mine | (known & {own.group})):
        # Of members that were killed Kafka learns when their sessions expire.
        while not _removed(admin.delete_consumer_groups([group])[group], f"group {group}", report, deadline):
            time.sleep(WAIT_S)


def _removed(deleted: Any, name: str, report: Report, until: float = 0.0) -> bool:
    """Wait for a removal; False: a group still has members, and it is worth trying again until then."""
    try:
        deleted.result(KAFKA_S + 5)
    except (KafkaException, TimeoutError) as error:
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code == KafkaError.NON_EMPTY_GROUP and time.monotonic() < until:
            return False
        report(f"{name} could not be removed from Kafka, it is yours to delete: {readable(error)}")
    return True


def _create_database(conn: connections.Connection, name: str) -> None:
    try:
        conn.execute(
            sql.SQL("create database {} template template0 encoding 'UTF8'").format(sql.Identifier(name))
        )
    except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
        raise PlaceError(f"the database {name} exists already\nchoose another --seed") from None


def _write_note(conn: connections.Connection, own: Belongings) -> None:
    conn.execute(
        sql.SQL("comment on database {} is {}").format(sql.Identifier(own.database), sql.Literal(own.note()))
    )


def _value(conn: connections.Connection, statement: str) -> Any:
    row = conn.execute(SQL[statement]).fetchone()
    return None if row is None else row[0]
