"""Being asked about leaves no trace in outbox.message: it does not grow, however often; what grows says by how much."""

from __future__ import annotations

from typing import NamedTuple

import psycopg
import pytest

from outbox.checking import Answer, GroupChecker, LocalTransactionState
from outbox.records import MessageView
from tests.support.plain_inserts import Connection, connect

CHECKS = 15
INSERT = """
    INSERT INTO outbox.message (topic, key, body, state, producer_group)
    SELECT 't', convert_to('k' || i, 'UTF8'), convert_to(repeat('x', 200), 'UTF8'), 'UNKNOWN', 'undecided'
    FROM generate_series(1, %s::integer) i
"""
SIZE = """
    SELECT coalesce(sum(pg_relation_size(inhrelid) + pg_indexes_size(inhrelid)), 0)::bigint
    FROM pg_inherits WHERE inhparent = %s::regclass
"""
LEAST = "SELECT count(*), coalesce(min(checks), 0), coalesce(sum(checks), 0) FROM outbox.pending_check"


class Silent:
    """Answers UNKNOWN to everything."""

    def missing(self, view: MessageView) -> str | None:
        """There is somebody to ask."""
        return None

    def ask(self, view: MessageView, deadline: float) -> Answer:
        """Know nothing."""
        return Answer(LocalTransactionState.UNKNOWN, "still unknown")


class Sizes(NamedTuple):
    """Bytes of the tables and their indexes."""

    message: int
    event: int
    pending_check: int

    @classmethod
    def of(cls, conn: Connection) -> Sizes:
        """Read them."""
        (pending,) = _row(
            conn, "SELECT pg_relation_size(c) + pg_indexes_size(c) FROM to_regclass('outbox.pending_check') c"
        )
        return cls(_row(conn, SIZE, "outbox.message")[0], _row(conn, SIZE, "outbox.event")[0], pending)


def check_often(dsn: str, count: int) -> tuple[Sizes, Sizes, int]:
    """Let `count` undecided messages be checked 15 times each; sizes before and after, and how many checks it took."""
    with connect(dsn) as conn:
        conn.execute(
            """
            INSERT INTO outbox.producer_group
                (name, check_after, check_interval, max_check_interval, max_checks, workers)
            VALUES ('undecided', '0', '1 ms', '1 ms', 1000000, 8)
            """
        )
        conn.execute(INSERT, [count])
        before = Sizes.of(conn)
        checker = GroupChecker(lambda: psycopg.connect(dsn), "undecided", Silent())
        while _row(conn, LEAST)[:2] < (count, CHECKS):
            checker.run_once()
        checker.stop()
        checks = int(_row(conn, LEAST)[2])
        states = conn.execute("SELECT state, count(*) FROM outbox.message GROUP BY state").fetchall()
        assert states == [("UNKNOWN", count)]
        (noted,) = _row(conn, "SELECT count(*) FROM outbox.event WHERE kind = 'check' AND answer = 'UNKNOWN'")
        assert noted == checks
        return before, Sizes.of(conn), checks


def _row(conn: Connection, query: str, *values: object) -> tuple[int, ...]:
    row: tuple[int, ...] | None = conn.execute(query, values).fetchone()
    assert row is not None
    return row


@pytest.mark.feature("S-43", "S-57")
def test_undecided_messages_checked_15_times_do_not_grow_the_table(database: str) -> None:
    before, after, checks = check_often(database, 2_000)
    assert after.message <= before.message * 1.05
    assert (after.event - before.event) / checks < 400, "bytes of audit for each check"
