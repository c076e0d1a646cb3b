"""The oldest and the newest PostgreSQL carry the whole way of a message, each service by a login with its role."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from outbox import Message, Outbox
from outbox.checking import GroupChecker, ListenerAsker, Listeners
from outbox.errors import DecidedOtherwiseError
from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, PushConsumer
from outbox_etl.arrow import task
from outbox_etl.options.dsn import parse
from outbox_etl.source.reader import SQL
from outbox_etl.statements import statement
from outbox_migrations.api import head, upgrade
from tests.support import hostile
from tests.support.checker_process import CheckerProcess
from tests.support.inbox_stage import TABLE, apply
from tests.support.outbox_command import outbox, succeed
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

pytest_plugins = ("tests.support.postgres_versions",)

GROUP = "payments"
Login = Callable[..., str]
"""Makes a login with these roles or attributes, and returns its DSN."""


@pytest.fixture(scope="module")
def login(postgres_version: str) -> Login:
    """Logins at a database whose outbox was made by an owner who is no superuser, and who is called `owner`."""
    database = f"app_{uuid4().hex[:8]}"
    made: dict[str, str] = {}

    def make(name: str, *roles: str, attributes: str = "") -> str:
        if name in made:
            return made[name]
        password = secrets.token_hex(8)
        with psycopg.connect(postgres_version, autocommit=True) as admin:
            admin.execute(
                sql.SQL("CREATE ROLE {} LOGIN PASSWORD {} " + attributes).format(
                    sql.Identifier(name), sql.Literal(password)
                )
            )
            for role in roles:
                admin.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(name)))
        made[name] = make_conninfo(postgres_version, user=name, password=password, dbname=database)
        return made[name]

    owner = make("owner", attributes="CREATEROLE")
    with psycopg.connect(postgres_version, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} OWNER owner").format(sql.Identifier(database)))
    upgrade(owner)
    upgrade(owner)
    with psycopg.connect(owner, autocommit=True) as conn:
        conn.execute(TABLE)
        conn.execute("GRANT INSERT ON applied TO PUBLIC")
        assert conn.execute("SELECT version_num FROM outbox.schema_version").fetchone() == (head(),)
    return make


def test_a_message_travels_on_this_version(login: Login, bootstrap_servers: str, topic: str) -> None:
    producer = login("producer", "outbox_producer", "outbox_checker")
    consumer = login("consumer", "outbox_consumer")
    reader = login("reader", "outbox_reader")
    kafka = {"OUTBOX_BOOTSTRAP_SERVERS": bootstrap_servers}
    succeed("topic", "register", topic, OUTBOX_DSN=login("operator", "outbox_operator"), **kafka)
    often = ("--check-after", "1s", "--check-interval", "1s")
    succeed("group", "set", GROUP, "--type", "MIXED", *often, OUTBOX_DSN=login("owner"))
    client = Outbox(producer_group=GROUP)
    with ExitStack() as stack:
        relay = stack.enter_context(
            RelayProcess(login("relay", "outbox_relay"), bootstrap_servers, "--http", "127.0.0.1:0")
        )
        stack.enter_context(CheckerProcess(login("checker", "outbox_checker"))).wait_until_running()
        listeners = Listeners()
        listeners.register(lambda view: view.biz_id == "paid" or None, checker="payment")
        checker = GroupChecker(producer, GROUP, ListenerAsker(listeners))
        stack.callback(checker.stop)
        checker.start()
        push = PushConsumer(
            "points",
            {topic: "*"},
            apply,
            dsn=consumer,
            kafka={"bootstrap.servers": bootstrap_servers},
            consume_from=FIRST,
            orderly=True,
        )
        stack.enter_context(push)
        with psycopg.connect(producer) as conn:
            for number in range(20):
                client.send(conn, Message(topic, key=f"key-{number % 3}", body=str(number).encode()))
            conn.commit()
            client.send(conn, Message(topic, key="key-0", body=b"rolled back"))
            conn.rollback()
            decided, asked = (
                client.prepare(
                    conn, Message(topic, key="half", body=body, checker="payment", biz_id=body.decode())
                )
                for body in (b"decided", b"paid")
            )
            conn.commit()
            client.commit(conn, decided)
            conn.commit()
            expected = {*map(str, range(20)), "decided", "paid"}
            with psycopg.connect(login("judge", "pg_read_all_data"), autocommit=True) as judge:
                read = "SELECT coalesce(array_agg(body ORDER BY n), '{}') FROM applied"

                def applied() -> list[str]:
                    row = judge.execute(read).fetchone()
                    assert row is not None
                    found: list[str] = row[0]
                    return found

                wait_until(lambda: set(applied()) >= expected, "each message has its effect")
                assert sorted(applied()) == sorted(expected), "once, and nothing that was rolled back"
                ordered = [int(body) for body in applied() if body.isdigit() and int(body) % 3 == 0]
                assert ordered == sorted(ordered), "in the order of the key"
            with pytest.raises(DecidedOtherwiseError):
                client.rollback(conn, asked)
        status = outbox("status", "--json", OUTBOX_DSN=reader)
        assert status.code == 0, status.err
        assert status.json["backlog"] == 0, status.out
        assert not relay.find("upkeep failed, trying again"), "its role suffices"
        relay.stop()
    with psycopg.connect(login("stranger"), autocommit=True) as conn:
        for statement in (
            "SELECT FROM outbox.message",
            "SELECT FROM outbox.inbox",
            "DELETE FROM outbox.topic",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                conn.execute(statement)


@contextmanager
def limited(dsn: str) -> Iterator[None]:
    """Let the database of a DSN end whatever takes a second, in sessions that are opened from now on."""
    hostile.set_for_database(dsn, dict.fromkeys(hostile.TIMEOUTS, "1s"))
    try:
        yield
    finally:
        with psycopg.connect(dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(sql.Identifier(conn.info.dbname)))


def test_no_time_out_of_the_database_ends_a_service(login: Login, bootstrap_servers: str, topic: str) -> None:
    """Relay and export wait for a lock, and a listener for us, in transactions longer than each limit.

    The checker waits for no lock that long, by its own limit; its session is there all the while.
    """
    owner, reader = login("owner"), login("reader", "outbox_reader")
    services = ["relay", "consumer", "reader"]
    client = Outbox(producer_group="slow")
    succeed("group", "set", "slow", "--type", "MIXED", "--check-after", "1s", OUTBOX_DSN=owner)
    going_on = threading.Event()
    calls: list[bytes | None] = []

    def slow(conn: psycopg.Connection[object], message: ConsumedMessage) -> ConsumeResult:
        calls.append(message.body)
        if message.body == b"slow":
            going_on.wait(120)
        return apply(conn, message)

    def exported() -> list[dict[str, list[int]]]:
        begin = (statement(SQL, "settings"),)
        query = "SELECT count(*) AS messages FROM outbox.message"
        return [batch.to_pydict() for batch in task.read(parse(reader).conninfo, begin, query)]

    with ExitStack() as stack:
        judge = stack.enter_context(psycopg.connect(login("watcher", "pg_monitor"), autocommit=True))
        sender = stack.enter_context(psycopg.connect(owner, autocommit=True))
        holder = stack.enter_context(psycopg.connect(owner))
        threads = stack.enter_context(ThreadPoolExecutor(1))
        stack.callback(holder.rollback)  # before the thread is waited for, whatever fails
        stack.callback(going_on.set)
        stack.enter_context(limited(owner))
        relay = stack.enter_context(RelayProcess(login("relay", "outbox_relay"), bootstrap_servers))
        checker = stack.enter_context(CheckerProcess(login("checker", "outbox_checker")))
        push = PushConsumer(
            "patient",
            {topic: "*"},
            slow,
            dsn=login("consumer", "outbox_consumer"),
            kafka={"bootstrap.servers": bootstrap_servers},
            consume_from=FIRST,
            timeout=120.0,
        )
        stack.enter_context(push)
        with sender.transaction():
            client.send(sender, Message(topic, key="1", body=b"slow"))
        wait_until(lambda: calls, "the listener is called")
        checker.wait_until_running()
        holder.execute("LOCK TABLE outbox.message IN ACCESS EXCLUSIVE MODE")
        export = threads.submit(exported)

        def waiting() -> set[str]:
            rows = judge.execute(
                "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE usename = ANY (%s) "
                "AND xact_start < clock_timestamp() - interval '2.5 s'",
                [services],
            )
            return {name for (name,) in rows.fetchall()}

        wait_until(lambda: waiting() == set(services), "each has a transaction longer than the limits")
        holder.rollback()
        going_on.set()
        [found] = export.result(120)
        assert found["messages"][0] > 0
        with sender.transaction():
            client.send(sender, Message(topic, key="1", body=b"next"))
        wait_until(lambda: b"next" in calls, "the relay publishes and the consumer goes on")
        assert calls == [b"slow", b"next"], "no transaction of the listener was ended"
        ended = ("25P04", "terminating connection", "statement timeout")
        assert [line for line in relay.lines + checker.lines if any(text in line for text in ended)] == []
