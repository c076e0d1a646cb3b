"""Isolation levels at which a statement does not see what was parked while it waited for a key; see `snapshots`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import IsolationLevel

from outbox.drivers.psycopg_sync import run
from outbox.errors import IsolationLevelError
from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, leases, plans
from outbox.inbox.failures import reported
from outbox.inbox.messages import Delivery
from outbox.inbox.parked_rows import DueSince
from outbox.rocketmq.consumer import ClientConfiguration, FilterExpression, SimpleConsumerBuilder
from outbox_relay.operations import dlq
from tests.support.inbox_stage import InboxStage, apply
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import Connection
from tests.support.waiting import wait_until

GROUP, TOPIC, KEY = 1, 1, b"k"
LEVELS = [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
ALLOWED = [None, IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED]
SET = [
    "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
    "SET default_transaction_isolation = '{}'",
]


def delivery(offset: int) -> Delivery:
    now = datetime.now(UTC)
    message = ConsumedMessage(uuid4(), "t", 0, offset, KEY, b"body", (), now, now)
    return Delivery(message, TOPIC, now.date(), b"digest", KEY)


@pytest.fixture
def head(conn: Connection) -> leases.ReceivedLease:
    """A message of a key that was received."""
    conn.execute("INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES ('g', '{}', true)")
    conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    with conn.transaction():
        run(conn, plans.park(GROUP, delivery(0), reported("failed"), DelaySchedule.of([0.0])))
    with conn.transaction():
        [lease], _ = run(conn, leases.receive(GROUP, 1, 3600.0, 17, DueSince(), now=0.0))
    return lease


def park_behind(conn: Connection, offset: int = 1) -> None:
    """Park another message of the key, as a member does that finds the key held."""
    behind = delivery(offset)
    with conn.transaction():
        assert run(conn, plans.take(GROUP, behind)).is_held
        run(conn, plans.park_behind(GROUP, behind))


def parked(conn: Connection) -> list[tuple[Any, ...]]:
    """Offsets and states of what is parked, and how many keys are held."""
    return conn.execute(
        "SELECT off, state, (SELECT count(*) FROM outbox.inbox_held_key) FROM outbox.inbox_parked ORDER BY id"
    ).fetchall()


def acknowledge(conn: Connection, lease: leases.ReceivedLease) -> bool:
    """As `SimpleConsumer.ack` does on the application's connection."""
    return run(conn, leases.acknowledge(lease))


@pytest.mark.parametrize("level", LEVELS)
def test_an_acknowledgement_that_would_lose_the_next_message_is_refused(
    database: str, conn: Connection, head: leases.ReceivedLease, level: IsolationLevel
) -> None:
    with psycopg.connect(database) as application:
        application.isolation_level = level
        application.execute("SELECT 1")
        park_behind(conn)
        with pytest.raises(
            IsolationLevelError, match=f"{level.name.replace('_', ' ')}; allowed: READ COMMITTED"
        ):
            acknowledge(application, head)
        application.commit()  # an application that goes on has written nothing of it
        assert parked(conn) == [(0, "retry", 1), (1, "waiting", 1)]
        application.isolation_level = IsolationLevel.READ_COMMITTED
        assert acknowledge(application, head)
        application.commit()
    assert parked(conn) == [(1, "retry", 1)]


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_is_refused_whoever_has_the_message_by_now(
    database: str, conn: Connection, head: leases.ReceivedLease, level: IsolationLevel
) -> None:
    """In an old snapshot it may be in the caller's hands still, or not be there yet."""
    with psycopg.connect(database) as application:
        application.isolation_level = level
        application.execute("SELECT 1")
        conn.execute("UPDATE outbox.inbox_parked SET attempts = attempts + 1")
        with pytest.raises(IsolationLevelError):
            acknowledge(application, head)
        with pytest.raises(IsolationLevelError):
            acknowledge(application, head._replace(attempt=head.attempt + 1))


@pytest.mark.parametrize("level", ALLOWED)
def test_what_was_parked_since_the_transaction_began_follows(
    database: str, conn: Connection, head: leases.ReceivedLease, level: IsolationLevel | None
) -> None:
    with psycopg.connect(database) as application:
        application.isolation_level = level
        application.execute("SELECT 1")
        park_behind(conn)
        assert acknowledge(application, head)
    assert parked(conn) == [(1, "retry", 1)]


@pytest.mark.parametrize("level", LEVELS)
def test_a_dead_letter_is_not_discarded_where_the_next_message_would_be_lost(
    database: str, conn: Connection, head: leases.ReceivedLease, level: IsolationLevel
) -> None:
    park_behind(conn)
    conn.execute("UPDATE outbox.inbox_parked SET state = 'dead', due_at = NULL WHERE off = 0")
    [[row]] = dlq.pages(conn, dlq.DeadLetterFilter())
    letter = dlq.ListedLetter(row["id"], row["failed_at"])
    with psycopg.connect(database, autocommit=True) as operator:
        operator.isolation_level = level
        with pytest.raises(IsolationLevelError):
            dlq.discard(operator, [letter])
    assert parked(conn) == [(0, "dead", 1), (1, "waiting", 1)]
    conn.execute(
        f"ALTER DATABASE \"{conn.info.dbname}\" SET default_transaction_isolation = '{named(level)}'"
    )
    succeed("dlq", "discard", str(letter.id), "--yes", OUTBOX_DSN=database)
    assert parked(conn) == [(1, "retry", 1)]


@pytest.mark.parametrize("level", LEVELS)
def test_followers_are_not_parked_at_a_level_that_keeps_its_snapshot(
    database: str, conn: Connection, head: leases.ReceivedLease, level: IsolationLevel
) -> None:
    with psycopg.connect(database) as other:
        other.isolation_level = level
        with pytest.raises(IsolationLevelError):
            run(other, plans.lock_held_key((str(GROUP), str(TOPIC), KEY)))


@pytest.mark.parametrize("level", LEVELS)
def test_a_simple_consumer_keeps_the_next_message_of_a_key(
    inbox: InboxStage, topic: str, level: IsolationLevel
) -> None:
    builder = (
        SimpleConsumerBuilder(inbox.dsn)
        .set_client_configuration(
            ClientConfiguration(inbox.bootstrap_servers, kafka={"session.timeout.ms": 6000})
        )
        .set_consumer_group(inbox.group)
        .set_subscription_expressions({topic: FilterExpression("*")})
        .set_consume_from(FIRST)
        .set_fifo(True)
        .set_await_duration(1)
    )
    inbox.produce_numbered_in(topic, 1)
    with builder.build() as consumer, psycopg.connect(inbox.dsn) as application:
        [first] = wait_until(lambda: consumer.receive(1, timedelta(hours=1)), "the first one is received")
        application.isolation_level = level
        apply(application, first.message)
        inbox.produce_numbered_in(topic, 1)
        wait_until(lambda: consumer.receive(1, 60) or inbox.count("outbox.inbox_parked") == 2, "it waits")
        with pytest.raises(IsolationLevelError, match="roll back"):
            consumer.ack(first, application)
        application.rollback()
        application.isolation_level = None
        apply(application, first.message)
        consumer.ack(first, application)
        application.commit()
        [second] = wait_until(lambda: consumer.receive(1, timedelta(hours=1)), "the second one is received")
        consumer.ack(second)
    assert inbox.count("outbox.inbox_parked") == 0


def named(level: IsolationLevel) -> str:
    return level.name.replace("_", " ").lower()


class Setting:
    """Listeners that set the isolation level of their session, fail once, and note the level that each run has."""

    def __init__(self, level: IsolationLevel) -> None:
        self.levels: set[str] = set()
        self._set = [text.format(named(level)) for text in SET]

    def single(self, conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        """Run for one message."""
        for text in self._set:
            conn.execute(text.encode())
        [(level,)] = conn.execute("SHOW transaction_isolation").fetchall()
        return self._end(level, message) or apply(conn, message)

    def batch(self, conn: Connection, messages: Sequence[ConsumedMessage]) -> list[ConsumeResult]:
        """Run for several."""
        return [self.single(conn, message) for message in messages]

    async def asynchronous(
        self, conn: psycopg.AsyncConnection[Any], message: ConsumedMessage
    ) -> ConsumeResult:
        """Run in the member's event loop."""
        for text in self._set:
            await conn.execute(text.encode())
        [(level,)] = await (await conn.execute("SHOW transaction_isolation")).fetchall()
        if (result := self._end(level, message)) is None:
            await conn.execute("INSERT INTO applied (message_id) VALUES (%s)", [message.message_id])
        return result or ConsumeResult.SUCCESS

    def _end(self, level: str, message: ConsumedMessage) -> ConsumeResult | None:
        self.levels.add(level)
        return None if message.reconsume_times else ConsumeResult.RECONSUME_LATER


@pytest.mark.parametrize("kind", ["single", "batch", "asynchronous"])
@pytest.mark.parametrize("level", LEVELS)
def test_no_listener_leaves_its_level_to_what_runs_after_it(
    inbox: InboxStage, topic: str, level: IsolationLevel, kind: str
) -> None:
    """Nor does the connection that a callable returns, nor the database: all transactions are READ COMMITTED."""

    def connect() -> Connection:
        conn = psycopg.connect(inbox.dsn)
        conn.isolation_level = level
        return conn

    inbox.conn.execute(
        f"ALTER DATABASE \"{inbox.conn.info.dbname}\" SET default_transaction_isolation = '{named(level)}'"
    )
    setting = Setting(level)
    options: dict[str, Any] = {"batch": 5} if kind == "batch" else {}
    inbox.produce_numbered(topic, 20, keys=4)
    with inbox.consumer(topic, getattr(setting, kind), orderly=True, dsn=connect, **options):
        inbox.wait_applied(20)
    assert setting.levels == {"read committed"}


@pytest.mark.parametrize("level", LEVELS)
def test_a_listener_cannot_change_the_level_of_its_transaction(
    inbox: InboxStage, topic: str, level: IsolationLevel
) -> None:
    def sets(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        conn.execute(f"SET TRANSACTION ISOLATION LEVEL {named(level)}".encode())
        return apply(conn, message)

    inbox.produce_numbered(topic, 1)
    with inbox.consumer(topic, sets, delays=DelaySchedule.of([3600.0])):
        wait_until(lambda: inbox.count("outbox.inbox_parked", "state = 'retry'"), "it is parked")
    assert inbox.count("outbox.inbox_parked", "error LIKE '%must be called before any query%'") == 1
    assert inbox.applied() == []


@pytest.mark.parametrize("held_keys", [0, 1])
def test_a_key_that_waits_behind_nothing_goes_on(
    conn: Connection, database: str, head: leases.ReceivedLease, held_keys: int
) -> None:
    """As an acknowledgement at REPEATABLE READ has left it before; a later message may have been parked behind it."""
    park_behind(conn, 1)
    park_behind(conn, 2)
    assert succeed("dlq", "hold", OUTBOX_DSN=database).out == "no parked message lacks its held key\n"
    conn.execute("DELETE FROM outbox.inbox_parked WHERE off = 0")
    if not held_keys:
        conn.execute("DELETE FROM outbox.inbox_held_key")
    held = succeed("dlq", "hold", "--json", OUTBOX_DSN=database).json
    assert held == [{"consumer_group": "g", "topic": "t", "key": "k"}]
    assert parked(conn) == [(1, "retry", 1), (2, "waiting", 1)]
    assert succeed("dlq", "hold", OUTBOX_DSN=database).out == "no parked message lacks its held key\n"
