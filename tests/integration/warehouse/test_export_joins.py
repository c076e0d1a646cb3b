"""New messages as an export reads them: with their first publications and checks, from the partitions they are in."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_etl.source.reader import SQL, Ids, new_messages
from outbox_etl.source.window import Cluster, Window
from outbox_etl.statements import statement
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect_as_service
from tests.support.publications import positions, record, snapshot, value
from tests.support.query_plans import Plan, Prepared, nodes, removed, scans

WIDTH, COUNT = 2_000, 5_000
HELD = [Ids(lower, lower + WIDTH) for lower in (1, WIDTH + 1, 2 * WIDTH + 1)]
FILL = """
    INSERT INTO outbox.message (topic, key, body, producer_group, state)
    SELECT 't', convert_to('k' || i, 'UTF8'), 'x', 'g', CASE WHEN i %% 10 = 0 THEN 'UNKNOWN' ELSE 'COMMITTED' END
    FROM generate_series(1, %s) i
"""
ASK = """
    INSERT INTO outbox.event (id, message_id, kind, answer, actor)
    SELECT id, message_id, 'check', 'UNKNOWN', 'c' FROM outbox.message
    WHERE state = 'UNKNOWN' AND id BETWEEN %s AND %s
"""
DECIDE = "UPDATE outbox.message SET state = 'COMMITTED' WHERE state = 'UNKNOWN' AND id BETWEEN 1 AND 50"
TRUTH = """
    SELECT m.message_id, m.published_at, m.partition, m."offset",
           (SELECT count(*) FROM outbox.event e WHERE e.id = m.id AND e.kind = 'check')
    FROM outbox.message_status m WHERE m.id BETWEEN %s AND %s
"""


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """Thousands of messages in three partitions, nearly all published, some twice; five were decided very late.

    Nothing is analyzed: a partition that was just made has no statistics, and arrays are of any length.
    """
    with connect_as_service(database) as conn:
        narrow_partitions(conn, width=WIDTH, count=len(HELD))
        for table in ("message", "publication", "event"):
            for ids in HELD:
                conn.execute(f"ALTER TABLE outbox.{table}_p{ids.lower:015d} SET (autovacuum_enabled = off)")
        conn.execute(FILL, [COUNT])
        conn.execute(ASK, [1, 60])
        conn.execute(ASK, [41, 80])
        there = positions(conn)
        for batch, ids in enumerate(HELD):
            published = [each for each in there if ids.lower <= each < ids.upper and each % 7]
            record(conn, published, seen=snapshot(conn), batch=2 * batch, offset=1_000)
            record(conn, published[:50], seen=snapshot(conn), batch=2 * batch + 1, offset=9_000)
        conn.execute(DECIDE)
        late = [each for each in positions(conn) if each > COUNT]
        record(conn, late, seen=snapshot(conn), batch=100, offset=5_000)
        record(conn, late[:2], seen=snapshot(conn), batch=101, offset=9_500)
        yield conn


def window(conn: Connection) -> Window:
    """All that there is. Not up to the snapshot's xmin only: tests beside this one hold that back."""
    hi = int(value(conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint"))
    top = int(value(conn, "SELECT last_value FROM outbox.position"))
    return Window(0, hi, top, top, Cluster("1", 1))


@pytest.mark.parametrize(("lower", "upper"), [(1, 501), (501, 2001), (2001, 4001), (4001, COUNT + 1)])
def test_new_messages_bring_their_first_publication_and_their_checks(
    conn: Connection, lower: int, upper: int
) -> None:
    text = new_messages(Ids(lower, upper), HELD, window(conn))
    names = 'message_id, published_at, partition, "offset", checks'
    with conn.transaction():
        conn.execute(statement(SQL, "joining").encode())
        found = conn.execute(f"SELECT {names} FROM ({text}) q".encode()).fetchall()
    truth = conn.execute(TRUTH, [lower, upper - 1]).fetchall()
    assert sorted(found) == sorted(truth)
    assert len(found) == upper - lower


def test_checks_of_an_earlier_window_count(conn: Connection) -> None:
    before = window(conn)
    conn.execute("UPDATE outbox.message SET state = 'ROLLED_BACK' WHERE id = 60")
    now = window(conn)
    text = new_messages(Ids(1, 2_001), HELD, Window(before.hi, now.hi, now.top, 0, now.cluster))
    assert conn.execute(f"SELECT id, checks FROM ({text}) q".encode()).fetchall() == [(60, 2)]


def test_a_restored_database_does_not_say_more_than_its_window(conn: Connection) -> None:
    now = window(conn)
    restored = Window(0, now.hi, now.top, 0, now.cluster, next=now.hi, foreign=10**9)
    record(conn, [7, 14], seen=snapshot(conn), batch=200)
    conn.execute(
        "INSERT INTO outbox.event (xid, id, message_id, kind, answer, actor) "
        "SELECT '100000000'::xid8, id, message_id, 'check', 'UNKNOWN', 'c' FROM outbox.message WHERE id = 7"
    )
    text = new_messages(Ids(1, 11), HELD, restored)
    found = conn.execute(
        f"SELECT published_at IS NULL, checks FROM ({text}) q WHERE id = 7".encode()
    ).fetchall()
    assert found == [(True, 1)]


def read(conn: Connection, ids: Ids) -> Plan:
    """The plan of one range's read."""
    with conn.transaction():
        conn.execute(statement(SQL, "joining").encode())
        watched = Prepared(conn, f"SELECT * FROM ({new_messages(ids, HELD, window(conn))}) q", {})
        plan = watched.explain({})
    conn.execute("DEALLOCATE watched")
    return plan


def test_a_range_of_new_messages_is_joined_by_hash_in_its_partition(conn: Connection) -> None:
    plan = read(conn, HELD[0])
    assert plan["Actual Rows"] == WIDTH
    assert {scan["Relation Name"] for scan in scans(plan, "message_p")} == {"message_p000000000000001"}
    assert {scan["Relation Name"] for scan in scans(plan, "event_p")} == {"event_p000000000000001"}
    spans = scans(plan, "publication_p")
    assert {scan["Relation Name"] for scan in spans} == {
        "publication_p000000000000001",
        f"publication_p{HELD[2].lower:015d}",
    }
    # Nothing is gone through once for each message.
    assert max(node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan)) <= 2 * WIDTH
    assert removed(plan) <= WIDTH
