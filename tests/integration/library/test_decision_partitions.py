"""What is done to one half message locks and opens that message's partition, however many partitions there are.

PostgreSQL counts, without a clock: the locks that the call's transaction holds, and how often a session kept its plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from outbox import HalfMessage, Message, Outbox
from outbox.operations.ranges import IDS
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection
from tests.support.servers import MakeDatabase

ORDERED = Message("orders", key="o-1", body=b"paid")
LOCKED = """
    SELECT DISTINCT c.relname::text FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
    WHERE l.pid = pg_backend_pid() AND c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'r'
        AND c.relname ~ '^message_p'
"""
KEPT = """
    SELECT sum(generic_plans)::integer, sum(custom_plans)::integer FROM pg_prepared_statements
    WHERE statement ~ '^UPDATE outbox.message'
"""
PARTITIONS = 12
OFTEN = 8
"""After five executions PostgreSQL compares a kept plan with those that it made for the values alone."""
CALLS: dict[str, Callable[[Outbox, Connection, HalfMessage], object]] = {
    "commit": lambda outbox, conn, half: outbox.commit(conn, half),
    "commit in order": lambda outbox, conn, half: outbox.commit(conn, half, ordered=True),
    "rollback": lambda outbox, conn, half: outbox.rollback(conn, half),
    "join": lambda outbox, conn, half: outbox.join(conn, half),
}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with psycopg.connect(database) as conn:
        made = conn.execute("SELECT count(*) FROM outbox.partition").fetchone()
        assert made is not None
        conn.execute(
            "SELECT outbox.add_partition(5000000) FROM generate_series(1, %s)", [PARTITIONS - made[0]]
        )
        conn.commit()
        yield conn


def halves(conn: Connection, outbox: Outbox, first: int, count: int) -> list[HalfMessage]:
    """Prepare half messages that have ids from this one on."""
    conn.execute("SELECT setval('outbox.position', %s, false)", [first])
    prepared = [outbox.prepare(conn, ORDERED) for _ in range(count)]
    conn.commit()
    return prepared


@pytest.mark.parametrize("call", CALLS)
def test_a_decision_locks_the_partition_of_its_message_alone(conn: Connection, call: str) -> None:
    outbox = Outbox(producer_group="orders")
    for half in halves(conn, outbox, 7 * IDS, OFTEN):
        CALLS[call](outbox, conn, half)
        locked = conn.execute(LOCKED).fetchall()
        conn.commit()
        assert locked == [("message_p000000005000001",)]


@pytest.mark.parametrize("first", [IDS - OFTEN // 2, 5 * IDS - OFTEN // 2])
def test_half_messages_on_both_sides_of_a_bound_are_decided(conn: Connection, first: int) -> None:
    outbox = Outbox(producer_group="orders")
    prepared = halves(conn, outbox, first, OFTEN)
    assert prepared[0].id < first + OFTEN // 2 < prepared[-1].id
    decided = [outbox.commit(conn, half).state for half in prepared]
    conn.commit()
    assert decided == ["COMMITTED"] * OFTEN


def test_a_plan_is_kept_where_partitions_are_narrower_than_a_range(make_database: MakeDatabase) -> None:
    outbox = Outbox(producer_group="orders")
    with psycopg.connect(make_database()) as conn:
        narrow_partitions(conn, count=PARTITIONS)
        for half in halves(conn, outbox, 2_500, 2 * OFTEN):
            outbox.commit(conn, half)
            conn.commit()
        assert conn.execute(KEPT).fetchone() == (2 * OFTEN - 5, 5)
