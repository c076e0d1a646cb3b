"""A listener that acts as another role, as with row security: the consumer's own statements are not that role's."""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.logins import Logins
from tests.support.waiting import wait_until

COUNT = 20
CHANGES = {
    "SET LOCAL ROLE": "SET LOCAL ROLE {}",
    "SET ROLE": "SET ROLE {}",
    "set_config": "SELECT set_config('role', {name}, true)",
}


class Tenant:
    """A role that may write `applied` and sees nothing of the outbox, and a consumer's login that may become it."""

    def __init__(self, inbox: InboxStage, logins: Logins) -> None:
        self.name, self.dsn = f"tenant_{uuid4().hex[:8]}", logins.make("outbox_consumer")
        user = psycopg.conninfo.conninfo_to_dict(self.dsn)["user"]
        for text in (
            "CREATE ROLE {0} NOLOGIN",
            "GRANT {0} TO {1}",
            "GRANT INSERT ON applied TO {0}",
            "ALTER TABLE applied ALTER COLUMN member SET DEFAULT current_user",
        ):
            inbox.conn.execute(sql.SQL(text).format(sql.Identifier(self.name), sql.Identifier(str(user))))

    def become(self, conn: Connection, change: str) -> None:
        """Act as the tenant from now on."""
        conn.execute(sql.SQL(CHANGES[change]).format(sql.Identifier(self.name), name=sql.Literal(self.name)))


@pytest.fixture
def tenant(inbox: InboxStage, logins: Logins) -> Tenant:
    """A role of this test."""
    made = Tenant(inbox, logins)
    logins.roles.append(made.name)
    return made


def write(conn: Connection, message: ConsumedMessage) -> None:
    """Write the row of a message, with the role that does."""
    conn.execute(
        "INSERT INTO applied (message_id, key, body, member) VALUES (%s, %s, %s, current_user)",
        [message.message_id, (message.key or b"").decode(), (message.body or b"").decode()],
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("options", [{}, {"orderly": True}, {"batch": 5}], ids=["single", "orderly", "batch"])
def test_a_listener_may_change_its_role_in_each_run(
    inbox: InboxStage, topic: str, tenant: Tenant, change: str, options: dict[str, Any]
) -> None:
    runs: Counter[bytes | None] = Counter()

    def single(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        runs[message.body] += 1
        tenant.become(conn, change)
        write(conn, message)
        fails = message.body == b"3" and message.reconsume_times < 2
        return ConsumeResult.RECONSUME_LATER if fails else ConsumeResult.SUCCESS

    def batch(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        return [single(conn, message) for message in messages]

    inbox.produce_numbered(topic, COUNT, keys=4)
    listener = batch if "batch" in options else single
    with inbox.consumer(topic, listener, dsn=tenant.dsn, **options):
        inbox.wait_applied(COUNT)
        wait_until(lambda: not inbox.count("outbox.inbox_parked"), "no retry is left")
    assert inbox.count("applied") == inbox.count("applied", f"member = '{tenant.name}'") == COUNT
    assert inbox.count("outbox.inbox_held_key") == 0
    assert runs[b"3"] == 3


def test_a_session_keeps_the_role_that_its_callable_gave_it(
    inbox: InboxStage, topic: str, tenant: Tenant
) -> None:
    """A listener that becomes another role leaves the callable's to the next one."""
    seen: list[tuple[str, str]] = []

    def connect() -> psycopg.Connection[Any]:
        conn = psycopg.connect(tenant.dsn, autocommit=True)
        conn.execute("SET ROLE outbox_consumer")
        return conn

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        before = conn.execute("SELECT current_user").fetchall()[0][0]
        conn.execute("RESET ROLE")
        tenant.become(conn, "SET ROLE")
        write(conn, message)
        seen.append((before, conn.execute("SELECT current_user").fetchall()[0][0]))
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 8)
    with inbox.consumer(topic, listener, dsn=connect, workers=1):
        inbox.wait_applied(8)
    assert seen == [("outbox_consumer", tenant.name)] * 8


@pytest.mark.parametrize("options", [{}, {"batch": 5}], ids=["single", "batch"])
def test_writes_that_the_commit_refuses_are_failed_attempts_at_once(
    inbox: InboxStage, topic: str, options: dict[str, Any]
) -> None:
    """Each run is a counted attempt, without the pauses for a server that is away; other messages go on."""
    inbox.conn.execute("CREATE TABLE known (body text PRIMARY KEY)")
    inbox.conn.execute(f"INSERT INTO known SELECT n::text FROM generate_series(0, {COUNT}) n WHERE n <> 3")
    inbox.conn.execute(
        "ALTER TABLE applied ADD FOREIGN KEY (body) REFERENCES known DEFERRABLE INITIALLY DEFERRED"
    )
    runs: Counter[bytes | None] = Counter()

    def single(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        runs[message.body] += 1
        return apply(conn, message)

    def batch(conn: Connection, messages: list[ConsumedMessage]) -> ConsumeResult:
        runs.update(message.body for message in messages if len(messages) == 1)
        return apply_all(conn, messages)

    inbox.produce_numbered(topic, COUNT)
    delays = DelaySchedule.of([0.05] * 2)
    with inbox.consumer(topic, batch if options else single, delays=delays, **options):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'dead'"), "the message is dead")
        inbox.wait_applied(COUNT - 1)
    [(attempts, failure)] = inbox.conn.execute("SELECT attempts, fingerprint FROM outbox.inbox_parked")
    assert (attempts, runs[b"3"]) == (3, 3)
    assert failure.startswith("ForeignKeyViolation")
