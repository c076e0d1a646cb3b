"""What a call of the library writes and reads, as PostgreSQL counts it in the call's own transaction, without a clock.

A row costs less than its index entries: a call writes one into each index of the row's partition whose predicate the
row fulfils, unless an update stays in its page and changes no column of an index (HOT).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg import sql

from outbox import HalfMessage, Message, Outbox

MESSAGE = Message(
    "orders", key="o-1", body=b"paid", tags=["paid"], index_keys=["o-1"], headers={"source": "till"}
)
ROWS = """
    SELECT relname, n_tup_ins, n_tup_upd - n_tup_hot_upd, n_tup_hot_upd, n_tup_del,
           coalesce(idx_tup_fetch, 0) + seq_tup_read
    FROM pg_stat_xact_user_tables WHERE schemaname = 'outbox'
"""
SENT_ENTRIES = 5
PREPARED_ENTRIES = 5
DECIDED_ENTRIES = {"commit": 5, "rollback": 4}
"""Of the row of a message with an index key. Who makes it fewer lowers the number here."""
INDEXES = """
    SELECT coalesce(pg_get_expr(indpred, indrelid), 'true') FROM pg_index
    WHERE indrelid = %s::regclass AND indisready
"""


class Touched(NamedTuple):
    """What a call did to one table, its partitions together."""

    inserted: int = 0
    updated: int = 0
    updated_in_page: int = 0
    deleted: int = 0
    read: int = 0
    index_entries: int = 0


@pytest.fixture
def conn(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of an application, in which topic and group are known and statements are prepared."""
    with psycopg.connect(database) as conn:
        outbox = Outbox(producer_group="orders")
        outbox.send(conn, MESSAGE)
        outbox.commit(conn, outbox.prepare(conn, MESSAGE))
        conn.commit()
        yield conn


def index_entries(conn: psycopg.Connection[Any], partition: str) -> int:
    """Return how many index entries the rows have that this transaction wrote into a partition."""
    table = sql.Identifier("outbox", partition)
    entries = 0
    for (predicate,) in conn.execute(INDEXES, [table.as_string(conn)]).fetchall():
        statement = sql.SQL("SELECT count(*) FROM {} WHERE xmin = pg_current_xact_id()::xid AND ({})")
        row = conn.execute(statement.format(table, sql.SQL(predicate))).fetchone()
        entries += 0 if row is None else row[0]
    return entries


def touched(conn: psycopg.Connection[Any], call: Callable[[], object]) -> dict[str, Touched]:
    """Make a call in a transaction of its own, and return what it did, by table."""
    before = {table: counts for table, *counts in conn.execute(ROWS).fetchall()}
    call()
    found: dict[str, Touched] = {}
    for partition, *counts in conn.execute(ROWS).fetchall():
        then = before.get(partition, [0] * len(counts))
        change = [int(now - earlier) for now, earlier in zip(counts, then, strict=True)]
        if any(change):
            written = change[0] + change[1]
            entries = index_entries(conn, partition) if written else 0
            table = partition.partition("_p")[0]
            both = zip(found.get(table, Touched()), Touched._make([*change, entries]), strict=True)
            found[table] = Touched._make(map(sum, both))
    conn.commit()
    return found


def half(conn: psycopg.Connection[Any], outbox: Outbox) -> HalfMessage:
    """Prepare a half message, and commit that."""
    prepared = outbox.prepare(conn, MESSAGE)
    conn.commit()
    return prepared


def test_sending_writes_one_row(conn: psycopg.Connection[Any]) -> None:
    outbox = Outbox(producer_group="orders")
    assert touched(conn, lambda: outbox.send(conn, MESSAGE)) == {
        "message": Touched(inserted=1, index_entries=SENT_ENTRIES)
    }


def test_sending_many_writes_one_row_each(conn: psycopg.Connection[Any]) -> None:
    outbox = Outbox(producer_group="orders")
    assert touched(conn, lambda: outbox.send_many(conn, [MESSAGE] * 50)) == {
        "message": Touched(inserted=50, index_entries=50 * SENT_ENTRIES)
    }


def test_preparing_writes_the_message_and_an_event(conn: psycopg.Connection[Any]) -> None:
    outbox = Outbox(producer_group="orders")
    assert touched(conn, lambda: outbox.prepare(conn, MESSAGE)) == {
        "message": Touched(inserted=1, index_entries=PREPARED_ENTRIES),
        "event": Touched(inserted=1, index_entries=1),
    }


@pytest.mark.parametrize("decision", ["commit", "rollback"])
def test_a_decision_reads_and_writes_its_message_and_adds_an_event(
    conn: psycopg.Connection[Any], decision: str
) -> None:
    outbox = Outbox(producer_group="orders")
    prepared = half(conn, outbox)
    assert touched(conn, lambda: getattr(outbox, decision)(conn, prepared)) == {
        "message": Touched(updated=1, read=1, index_entries=DECIDED_ENTRIES[decision]),
        "event": Touched(inserted=1, index_entries=1),
    }
