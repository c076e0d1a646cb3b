"""`outbox doctor`: whether a deployment would work, from clocks to Kafka's topics, with what repairs each finding.

`database_checks` reads whether the database is fit, `health` what is wrong now. This adds what neither reads: the way
to the server, what holds old rows, Kafka, and a half message that a checker must find.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import class_row, dict_row

from outbox.client import Outbox
from outbox.message import Message
from outbox.statements import Statements
from outbox_relay.database import connections
from outbox_relay.database.rights import needing
from outbox_relay.operations import database_checks, groups, health, topics
from outbox_relay.operations import status as inspect_status
from outbox_relay.operations.database_checks import Check
from outbox_relay.operations.kafka_topics import KafkaTopics
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.text.formatting import many, printable, seconds

STATEMENTS = Statements("outbox_relay/operations/doctor.sql")
SKEW_S = 2.0
"""Clocks that differ by more make times in logs and headers misleading. Nothing is lost by it."""
HELD_S = 600.0
"""A transaction that is open for longer is named: VACUUM removes nothing that is younger."""
GROUP = "outbox-doctor"
"""The producer group, and the topic, of the half message; it is never published."""
LOOPBACK = ("", "127.0.0.1", "::1")
"""Addresses of a server on this machine; none: a socket."""


class DoctorOptions(NamedTuple):
    """What is checked besides the database."""

    bootstrap_servers: str | None
    kafka: Mapping[str, str]
    half_message_within: float | None
    """Send a half message, and wait so many seconds for a checker; None: do not."""


class _Holder(NamedTuple):
    """What keeps VACUUM from old rows."""

    kind: str
    name: str
    who: str
    seconds: float | None


def examine(dsn: str, chosen: DoctorOptions) -> Iterator[Check]:
    """Check everything, in the order in which it has to work; only the half message writes anything.

    Raises:
        DatabaseUnreachableError: there is no database to ask.
    """
    with connections.connect(dsn) as conn:
        yield from _session(conn)
        yield _pooler(dsn, conn)
        found = database_checks.run(conn)
        yield from found
        yield from _allowed("old rows", _holders(conn))
        fits = all(check.level != "FAILED" for check in found if check.name == "schema")
        if chosen.bootstrap_servers is None:
            yield Check("kafka", "warning", "not checked", "--bootstrap-servers names the brokers")
        else:
            yield from _allowed(
                "topic", _kafka(conn if fits else None, chosen.bootstrap_servers, chosen.kafka)
            )
        if not fits:
            return
        yield from _allowed("now", _problems(dsn))
        within = chosen.half_message_within
        if within is not None:
            with needing("outbox_operator and outbox_producer", dsn):
                yield database_checks.allowed("half message", lambda: _half_message(conn, within))


def _allowed(name: str, checks: Iterator[Check]) -> Iterator[Check]:
    """Yield what checks find; where the login may not read it, a failed one that names the right."""
    try:
        yield from checks
    except psycopg.errors.InsufficientPrivilege as error:
        yield database_checks.denied(name, error)


def _session(conn: psycopg.Connection[Any]) -> Iterator[Check]:
    begun = time.time()
    with conn.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(STATEMENTS["session"]).fetchone() or {}
    took = time.time() - begun
    # The server read its clock at some moment in between.
    skew = abs(found["now"] - (begun + took / 2)) - took / 2
    if skew > SKEW_S:
        yield Check(
            "clock",
            "warning",
            f"this machine and PostgreSQL differ by {seconds(skew)}",
            "let both follow a time server (NTP)",
        )
    else:
        yield Check("clock", "ok", "this machine and PostgreSQL agree")
    yield _encryption(found)
    yield _rights(found)


def _encryption(found: Mapping[str, Any]) -> Check:
    if found["encrypted"]:
        return Check("encryption", "ok", "TLS to PostgreSQL")
    if found["server"] in LOOPBACK:
        return Check("encryption", "ok", "none, on this machine")
    return Check(
        "encryption",
        "warning",
        f"none on the way to {found['server']}: passwords and messages can be read there",
        "sslmode=verify-full in the connection string, and ssl = on at the server",
    )


def _rights(found: Mapping[str, Any]) -> Check:
    who = printable(found["who"])
    if found["superuser"]:
        return Check(
            "rights",
            "warning",
            f"{who} is a superuser, whom no guard of the outbox stops",
            "a login of its own for each process, with one role of the outbox: outbox db sql --roles lists them",
        )
    if not found["roles"]:
        return Check(
            "rights",
            "warning",
            f"{who} has no role of the outbox",
            f'GRANT outbox_reader TO "{who}", or the role for what it does, such as outbox_relay or outbox_producer',
        )
    return Check("rights", "ok", f"{who}: {', '.join(found['roles'])}")


def _pooler(dsn: str, conn: psycopg.Connection[Any]) -> Check:
    """Find a pooler that divides sessions: let somebody else take the server's process between two statements."""
    mark = secrets.token_hex(8)
    first = conn.execute(STATEMENTS["mark"], {"mark": mark}).fetchone()
    with connections.connect(dsn) as other, other.transaction():
        other.execute(STATEMENTS["take"])
        again = conn.execute(STATEMENTS["marked"]).fetchone()
    if first == again and first is not None and first[0] == mark:
        return Check("sessions", "ok", "statements of a connection reach one session")
    return Check(
        "sessions",
        "FAILED",
        "a pooler in transaction or statement mode divides sessions: the relay refuses it",
        "name the server itself, or a pooler in session mode, for relay, checker and consumers",
    )


def _holders(conn: psycopg.Connection[Any]) -> Iterator[Check]:
    with conn.cursor(row_factory=class_row(_Holder)) as cursor:
        found = cursor.execute(STATEMENTS["holders"], {"longer_than": HELD_S}).fetchall()
    if not found:
        yield Check("old rows", "ok", f"nothing has held them for {seconds(HELD_S)}")
    for one in found:
        name, who = printable(one.name), printable(one.who)
        text, repair = {
            "session": (f"session {name} ({who})", f"end it: SELECT pg_terminate_backend({name})"),
            "prepared": (
                f"prepared transaction {name} ({who})",
                f"COMMIT PREPARED '{name}' or ROLLBACK PREPARED '{name}'",
            ),
            "slot": (
                f"replication slot {name} ({who}), which nothing reads",
                f"start its reader, or SELECT pg_drop_replication_slot('{name}')",
            ),
        }[one.kind]
        since = "" if one.seconds is None else f" for {seconds(one.seconds)}"
        yield Check("old rows", "warning", f"held by {text}{since}", repair)


def _kafka(
    conn: psycopg.Connection[Any] | None, bootstrap_servers: str, settings: Mapping[str, str]
) -> Iterator[Check]:
    try:
        known = KafkaTopics(bootstrap_servers, settings).counts()
    except TopicError as error:
        found, _, repair = str(error).partition("\n")
        yield Check("kafka", "FAILED", found, repair or None)
        return
    yield Check("kafka", "ok", f"{many(len(known), 'topic')} at {bootstrap_servers}")
    for topic in [] if conn is None else topics.everything(conn):
        name = printable(topic.name)
        if topic.name not in known:
            yield Check(
                "topic", "FAILED", f"{name} is registered and Kafka has none", f"outbox topic create {name}"
            )
            continue
        partitions, copies = known[topic.name]
        if partitions < topic.partitions:
            yield Check(
                "topic",
                "FAILED",
                f"{name} has {partitions} partitions in Kafka and is pinned to {topic.partitions}",
                "add partitions in Kafka",
            )
        elif copies < 2:
            yield Check(
                "topic",
                "warning",
                f"{name} has one replica: a lost broker loses its messages",
                "raise its replication factor to 3 in Kafka, and min.insync.replicas to 2",
            )


def _problems(dsn: str) -> Iterator[Check]:
    with connections.connect(dsn) as conn:  # the status leaves its session read-only
        found = health.problems(inspect_status.look(conn, inspect_status.WINDOW_S))
    if not found:
        yield Check("now", "ok", "outbox status reports no problem")
    for problem in found:
        yield Check("now", "FAILED", problem.text, problem.command)


def _half_message(conn: psycopg.Connection[Any], within: float) -> Check:
    """Send a half message that a query rolls back when a checker asks; whatever happens, none is left undecided.

    If this process dies, the next check rolls it back. If it gives up while a checker decides, the checker's decision
    stands: both are one compare-and-set.
    """
    groups.change(
        conn,
        GROUP,
        {"message_type": "TRANSACTION", "callback": {"kind": "sql", "query": STATEMENTS["reply"]}},
    )
    outbox = Outbox(producer_group=GROUP)
    begun = time.monotonic()
    with conn.transaction():
        half = outbox.prepare(conn, Message(GROUP, body="is anybody there?"), check_after=0.1)
    while time.monotonic() < begun + within:
        state, by, unable = conn.execute(STATEMENTS["tested"], {"id": half.id}).fetchone() or (None,) * 3
        if state == "ROLLED_BACK":
            took = seconds(time.monotonic() - begun)
            return Check("half message", "ok", f"a checker found it within {took}: {printable(by or '')}")
        if unable is not None:
            with conn.transaction():
                outbox.rollback(
                    conn, half, remark="outbox doctor: found by a checker that has no login for queries"
                )
            return Check("half message", "ok", "a checker found it; it asks by HTTP only (no --callback-dsn)")
        time.sleep(0.1)
    with conn.transaction():
        outbox.rollback(conn, half, remark="outbox doctor: no checker came")
    return Check(
        "half message",
        "FAILED",
        f"no checker asked about a half message within {seconds(within)}",
        f"outbox checker run (all groups, or with --group {GROUP})",
    )
