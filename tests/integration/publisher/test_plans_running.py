"""Plans of a poll while other transactions run, or hold a snapshot, for long."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from outbox_relay.publisher.finder import BETWEEN_RANGES, Finder, Slice, prepare_session
from tests.integration.publisher.test_plans_finder import LEASE, POLL, WIDTH, here, poll_statement, values
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered
from tests.support.query_plans import Prepared, buffers, removed, scans


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A relay's session; statistics stay as they are, so that plans are not made anew behind the test's back."""
    with connect(database) as conn:
        narrow_partitions(conn, width=WIDTH, count=31)
        for (table,) in conn.execute("SELECT name::text FROM outbox.partition").fetchall():
            conn.execute(
                sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(
                    sql.Identifier(*table.split("."))
                )
            )
        prepare_session(conn)
        yield conn


def test_a_poll_reads_no_row_of_a_transaction_that_still_runs(conn: Connection, database: str) -> None:
    """Each would be looked up in the table, at every poll, to find that it is not visible.

    A snapshot lists it as running as soon as a younger transaction has ended; until then its xid is no less than the
    snapshot's xmax.
    """
    watched = poll_statement(conn, 5)
    watched.run(values(here(conn)))
    empty = buffers(watched.explain(values(here(conn))))
    with psycopg.connect(database) as writer:
        insert_numbered(writer, "many", 1_000)
        insert_numbered(conn, "few", 1)
        during = here(conn)
        (running,) = writer.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        assert running in during.xip
        plan = watched.explain(values(during))
        assert buffers(plan) <= empty + 20, (empty, buffers(plan))
        ranges = [node["Index Cond"] for node in scans(plan, "message_p") if "ANY" not in node["Index Cond"]]
        assert ranges
        assert all("xid >=" in cond and "xid <" in cond for cond in ranges)
        writer.commit()
        plan = watched.explain(values(during))
    assert plan["Actual Rows"] == 1_001, "its rows are found when it has committed"


@pytest.mark.feature("S-35")
def test_a_held_snapshot_does_not_make_polls_grow(conn: Connection, database: str) -> None:
    """Rows are never rewritten when they are published, so there is nothing dead to walk.

    A branch searches once for new transactions and once for each that was open and has ended.
    """
    watched = poll_statement(conn, 30)
    watched.run(values(here(conn)))
    cost = []
    with psycopg.connect(database) as reader, psycopg.connect(database) as writer:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM outbox.message")
        insert(writer, "t", "k", b"stays open")
        for number in range(6):
            conn.execute("SELECT setval('outbox.position', %s, false)", [number * WIDTH * 2 + 10])
            for _ in range(9):
                insert_numbered(conn, "t", 100)
            cost.append(buffers(watched.explain(values(here(conn)))))
    assert max(cost) <= 2 * min(cost), cost


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "poll", "others")
def test_topics_that_are_read_apart_cost_a_poll_no_row_or_each_row_once(conn: Connection) -> None:
    """No row of those that the index leaves out, and the new ones of the others."""
    topics = [f"t{number}" for number in range(BETWEEN_RANGES + 3)]
    hashes = conn.execute("SELECT pg_catalog.hashtext(t) FROM pg_catalog.unnest(%s::text[]) t", [topics])
    scope = Slice(frozenset(range(8)), without=frozenset(value for (value,) in hashes))
    assert len(scope.others) == 3
    ranges = len(scope.ranges)
    types = {f"{bound}{number}": "integer" for number in range(ranges) for bound in ("low", "high")}
    finder = Finder(conn, lease=LEASE)
    finder.name_partitions((f"message_p{1:015}",))
    statement = finder.poll_statement(scope)
    watched = Prepared(conn, statement, POLL | types | {"others": "integer[]"})
    watched.run(values(here(conn)) | scope.values)
    snapshot = here(conn)
    for topic in topics:
        insert_numbered(conn, topic, 20)
    insert_numbered(conn, "one", 5)
    plan = watched.explain(values(snapshot) | scope.values)
    read = scans(plan, "message_p")
    assert len(read) == 2 * ranges, "two branches for each range"
    assert all("xid" in node["Index Cond"] and "hashtext" in node["Index Cond"] for node in read)
    assert plan["Actual Rows"] == 1 + 5, "the header, and what is not read apart"
    assert removed(plan) == 3 * 20, "a row that the index leaves out is looked up in no table"
