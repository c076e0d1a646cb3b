"""Plans of the relay's statements: prepared on empty partitions, as they always are, and looked at when full."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from psycopg import sql

from outbox.statements import array_text
from outbox_relay.publisher.finder import Finder, Slice, prepare_session
from outbox_relay.publisher.hands.writes import STATEMENTS as WRITES
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.snapshot import Snapshot
from outbox_relay.publisher.upkeep import STATEMENTS as UPKEEP
from tests.support.bare_reader import Reading, narrow_partitions
from tests.support.lanes import take
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered
from tests.support.query_plans import Plan, Prepared, buffers, nodes, removed, scans

POLL = {"first0": "smallint", "last0": "smallint", "xmax": "xid8", "xip": "xid8[]", "page": "bigint",
        "bytes": "bigint", "row_bytes": "bigint", "epoch": "bigint", "owner": "text", "mine": "smallint[]"}  # fmt: skip
ALL_LANES = "{0,1,2,3,4,5,6,7}"
LEASE = Lease("me", 7, 10.0)
FEW = 5
WIDTH = 1_000


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
        conn.execute("UPDATE outbox.lane SET epoch = %s, owner = %s", [LEASE.epoch, LEASE.owner])
        prepare_session(conn)
        yield conn


def poll_statement(conn: Connection, partitions: int) -> Prepared:
    tables = [
        row[0]
        for row in conn.execute(
            "SELECT relname FROM pg_class c JOIN outbox.partition p ON p.name = c.oid ORDER BY p.lower"
        )
    ]
    finder = Finder(conn, lease=LEASE)  # its polls ask whether they need a barrier
    finder.name_partitions(tuple(tables[:partitions]))
    return Prepared(conn, finder.poll_statement(Slice(frozenset(range(8)))), POLL)


def values(snapshot: Snapshot, page: int = 5_000) -> dict[str, Any]:
    return {
        "first0": 0,
        "last0": 7,
        "xmax": str(snapshot.xmax),
        "xip": snapshot.xip_array,
        "page": page,
        "bytes": 16 << 20,
        "row_bytes": 64 << 20,
        **LEASE.ownership(range(8)),
    }


def here(conn: Connection) -> Snapshot:
    """Return the session's snapshot without the transactions of the server's other databases.

    They write nothing that is read here, but a poll searches for each of them that has ended meanwhile, and when
    that happens is up to other tests.
    """
    snapshot = Finder(conn).here()[0]
    own = conn.execute(
        "SELECT array_agg(backend_xid::text::bigint) FROM pg_stat_activity "
        "WHERE datname = current_database() AND backend_xid IS NOT NULL"
    ).fetchone()
    assert own is not None
    return replace(snapshot, xip=tuple(xid for xid in snapshot.xip if xid in (own[0] or ())))


def fill(conn: Connection, partitions: int) -> None:
    """Commit rows into each of the first partitions, in transactions of a hundred."""
    for number in range(partitions):
        conn.execute("SELECT setval('outbox.position', %s, false)", [number * WIDTH + 1])
        for _ in range(5):
            insert_numbered(conn, "t", 100)


def assert_finder_index(conn: Connection, plan: Plan, partitions: int) -> None:
    read = scans(plan, "message_p")
    assert len(read) == 2 * partitions, "two branches for each partition"
    for node in read:
        assert node["Node Type"] in {"Index Scan", "Index Only Scan"}, node
        row = conn.execute(
            "SELECT indexdef FROM pg_indexes WHERE indexname = %s", [node["Index Name"]]
        ).fetchone()
        assert row is not None
        assert "(xid, lane, hashtext(topic))" in row[0]
        assert "xid" in node["Index Cond"], "xid bounds the walk, it does not filter"
    assert not [node for node in nodes(plan) if node["Node Type"].startswith("Gather")]
    assert removed(plan) <= FEW


def assert_sorted_once(plan: Plan) -> None:
    """The bytes are summed up in the order in which the rows are returned."""
    assert len([node for node in nodes(plan) if "Sort" in node["Node Type"]]) == 1


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "poll")
@pytest.mark.feature("S-05", "S-50", "S-85")
@pytest.mark.parametrize("partitions", [1, 5, 30])
def test_each_branch_of_the_finder_uses_its_index(conn: Connection, database: str, partitions: int) -> None:
    watched = poll_statement(conn, partitions)
    watched.run(values(here(conn)))
    fill(conn, partitions)
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        insert(first, "t", "k", b"open")
        insert_numbered(conn, "t", 1)
        insert(second, "t", "k", b"open as well")
        insert_numbered(conn, "t", 1)
        snapshot = here(conn)
        assert len(snapshot.xip) >= 2
        idle = watched.explain(values(snapshot))
        assert_finder_index(conn, idle, partitions)
        assert not scans(idle, "lane"), "whose the lanes are is asked only of what is found"
        first.commit()
        insert_numbered(conn, "t", 20)
        busy = watched.explain(values(snapshot))
        assert_finder_index(conn, busy, partitions)
        assert busy["Actual Rows"] == 22, "the header, the late one and the new ones"
    per_branch = 4 * (len(snapshot.xip) + 1)
    assert buffers(idle) <= 20 + partitions * per_branch


def test_a_poll_ends_at_the_first_row_beyond_a_page(conn: Connection) -> None:
    """A sort below the limit, or a bitmap, would read all of a difference before the first row of it."""
    watched = poll_statement(conn, 30)
    watched.run(values(here(conn)))
    snapshot = here(conn)
    page = 50
    cost = []
    for rows in (2 * page, 200 * page):
        insert_numbered(conn, "t", rows)
        plan = watched.explain(values(snapshot, page))
        read = scans(plan, "message_p")
        assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) == page + 1
        assert all(node["Node Type"] in {"Index Scan", "Index Only Scan"} for node in read)
        (limit,) = [node for node in nodes(plan) if node["Node Type"] == "Limit"]
        assert not [node for node in nodes(limit) if "Sort" in node["Node Type"]]
        cost.append(buffers(plan))
    assert cost[1] <= cost[0] + 20, cost


@pytest.mark.feature("S-08")
def test_undecided_messages_cost_the_finder_nothing_however_many(conn: Connection) -> None:
    watched = poll_statement(conn, 5)
    watched.run(values(here(conn)))
    insert_numbered(conn, "t", 1)
    snapshot = here(conn)
    cost = [buffers(watched.explain(values(snapshot)))]
    for halves in (400, 4_000):
        conn.execute(
            "INSERT INTO outbox.message (topic, state, producer_group) "
            "SELECT 't', 'UNKNOWN', 'g' FROM generate_series(1, %s)",
            [halves],
        )
        plan = watched.explain(values(snapshot))
        assert removed(plan) == 0
        cost.append(buffers(plan))
    assert max(cost) <= cost[0] + 2, cost


@pytest.mark.feature("S-84")
def test_a_thousand_topics_cost_no_table_no_index_and_no_page_more_than_one(conn: Connection) -> None:
    """Rows of one topic lie together in the index, as in the table; of many, each may be on another page than the last.

    So a page of the table may be touched once for each of its rows, in memory. No more pages are touched.
    """
    relations = "SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"
    pages = (
        "SELECT count(DISTINCT (m.ctid::text::point)[0]) FROM outbox.message m WHERE m.xid >= %s::text::xid8"
    )
    before = conn.execute(relations).fetchone()
    watched = poll_statement(conn, 5)
    watched.run(values(here(conn)))
    inserted, read, of_table = [], [], []
    rows = 800
    for topics in (1, 100, rows):
        snapshot = here(conn)
        row = conn.execute(
            "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) INSERT INTO outbox.message (topic, key) "
            "SELECT 'topic-' || lpad((i %% %s)::text, 3, '0'), 'k' FROM generate_series(1, %s) i",
            [topics, rows],
        ).fetchone()
        assert row is not None
        inserted.append(buffers(row[0][0]["Plan"]))
        plan = watched.explain(values(snapshot))
        assert plan["Actual Rows"] == rows + 1, "the header and all of them"
        read.append(buffers(plan))
        of_table.append((conn.execute(pages, [str(snapshot.xmax)]).fetchone() or (0,))[0])
    assert conn.execute(relations).fetchone() == before
    assert inserted[2] <= 1.25 * inserted[0], inserted
    assert of_table[2] <= of_table[0] + 1, of_table
    assert read[2] <= 1.25 * read[0] + rows, read
    assert read[2] <= 1.25 * read[1], "however many topics"


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "page", "listed")
def test_a_page_of_a_backlog_reads_its_own_partition_only(conn: Connection) -> None:
    finder = Finder(conn)
    types = {
        "ids": "bigint[]",
        "lowest": "bigint",
        "highest": "bigint",
        "bytes": "bigint",
        "row_bytes": "bigint",
        "cur_xmax": "xid8",
        "cur_xip": "xid8[]",
    }
    watched = Prepared(conn, finder._page, types)
    fill(conn, 30)
    current = here(conn)
    ids = list(range(7_001, 7_400, 3))
    plan = watched.explain(
        {
            "ids": "{" + ",".join(map(str, ids)) + "}",
            "lowest": ids[0],
            "highest": ids[-1],
            "bytes": 16 << 20,
            "row_bytes": 64 << 20,
            "cur_xmax": str(current.xmax),
            "cur_xip": current.xip_array,
        }
    )
    assert {node["Relation Name"] for node in scans(plan, "message_p")} == {"message_p000000000007001"}
    assert all(node["Node Type"].startswith(("Index", "Bitmap")) for node in scans(plan, "message_p"))
    assert plan["Actual Rows"] == len(ids)
    assert_sorted_once(plan)


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "page")
def test_a_dense_page_walks_its_range_only(conn: Connection) -> None:
    types = {
        "lowest": "bigint",
        "highest": "bigint",
        "bytes": "bigint",
        "row_bytes": "bigint",
        "cur_xmax": "xid8",
        "cur_xip": "xid8[]",
    }
    watched = Prepared(conn, Finder(conn)._dense_page, types)
    fill(conn, 30)
    current = here(conn)
    plan = watched.explain(
        {
            "lowest": 7_101,
            "highest": 7_200,
            "bytes": 16 << 20,
            "row_bytes": 64 << 20,
            "cur_xmax": str(current.xmax),
            "cur_xip": current.xip_array,
        }
    )
    (scan,) = scans(plan, "message_p")
    assert scan["Relation Name"] == "message_p000000000007001"
    assert scan["Node Type"] in {"Index Scan", "Index Only Scan"}
    assert plan["Actual Rows"] == 100
    assert removed(plan) <= FEW
    assert_sorted_once(plan)


@pytest.mark.plan("relay/outbox_relay/publisher/upkeep.sql", "release")
def test_releasing_what_is_due_reads_what_is_due(conn: Connection) -> None:
    watched = Prepared(conn, UPKEEP["release"], {"since": "text", "lanes": "smallint[]"})
    fill(conn, 30)
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, due_at) SELECT id, message_id, 'delayed', "
        "CASE WHEN id < 4 THEN now() ELSE 'infinity' END FROM outbox.message"
    )
    plan = watched.explain({"since": "-infinity", "lanes": ALL_LANES})
    assert removed(plan) <= FEW
    assert conn.execute("SELECT count(*) FROM outbox.waiting WHERE id < 4").fetchone() == (0,)
    assert not [node for node in nodes(plan) if node["Node Type"] == "Seq Scan"]


SWEEP_TYPES = {
    "lowest": "bigint",
    "lowest_publication": "bigint",
    "lanes": "smallint[]",
    "xmax": "xid8",
    "xip": "xid8[]",
    "since_xmin": "xid8",
    "since_xmax": "xid8",
    "since_xip": "xid8[]",
    "most": "bigint",
}


@pytest.mark.plan("relay/outbox_relay/publisher/upkeep.sql", "lost")
def test_the_sweep_reads_no_publication_older_than_the_last_sweep(conn: Connection) -> None:
    """An EXHAUSTED message keeps an old partition live, and with it all publications since."""
    fill(conn, 10)
    publish = """
        INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets)
        SELECT 1, id / 50, min(id), max(id), '{0}', pg_current_snapshot(), array_agg(id ORDER BY id),
               array_agg(0), array_agg(id ORDER BY id)
        FROM outbox.message WHERE id > %s GROUP BY id / 50, (id - 1) / 1000
    """
    conn.execute(publish, [0])
    # Without the transactions of other tests, which may be older than this history and keep it in the sweep.
    xmax = here(conn).xmax
    since = Snapshot(xmax, xmax)
    insert_numbered(conn, "t", 20)
    row = conn.execute("SELECT max(id) FROM outbox.message").fetchone()
    assert row is not None
    conn.execute(publish, [row[0] - 20])
    lost = insert(conn, "t", "k", b"has no publication")
    now = here(conn)
    watched = Prepared(conn, UPKEEP["lost"], SWEEP_TYPES)
    bounds = {
        "lowest": 1,
        "lowest_publication": 1,
        "lanes": ALL_LANES,
        "xmax": str(now.xmax),
        "xip": now.xip_array,
        "since_xmin": str(since.xmin),
        "since_xmax": str(since.xmax),
        "since_xip": since.xip_array,
        "most": 100,
    }
    plan = watched.explain(bounds)
    unnested = [node for node in nodes(plan) if node["Node Type"] == "ProjectSet"]
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in unnested) <= 100
    found = watched.run(bounds)
    expected = conn.execute("SELECT id, lane FROM outbox.message WHERE message_id = %s", [lost]).fetchall()
    assert found == expected


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "barrier")
def test_the_barrier_writes_no_table(conn: Connection) -> None:
    held = take(conn, "me", 10)
    mine = array_text(held.lanes)
    watched = Prepared(conn, WRITES["barrier"], {"epoch": "bigint", "owner": "text", "mine": "smallint[]"})
    plan = watched.explain({"epoch": held.epoch, "owner": "me", "mine": mine})
    assert plan["Actual Rows"] == 1
    assert not [node for node in nodes(plan) if node["Node Type"] == "ModifyTable"]
    assert watched.explain({"epoch": held.epoch + 1, "owner": "me", "mine": mine})["Actual Rows"] == 0


@pytest.mark.feature("S-29", "S-32")
@pytest.mark.parametrize("by", ["id", "message_id"])
def test_one_message_is_looked_up_in_one_partition(conn: Connection, database: str, by: str) -> None:
    fill(conn, 30)
    reading = Reading(database)
    reading.close()
    conn.execute(
        """
        INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets)
        SELECT 1, id / 50, min(id), max(id), '{0}', pg_current_snapshot(), array_agg(id ORDER BY id),
               array_agg(0), array_agg(id ORDER BY id)
        FROM outbox.message GROUP BY id / 50, (id - 1) / 1000
        """
    )
    row = conn.execute("SELECT message_id::text FROM outbox.message WHERE id = 12077").fetchone()
    assert row is not None
    with connect(database) as asking:  # an operator's session, without the relay's settings
        asking.execute("SET plan_cache_mode = force_generic_plan")
        wanted = {
            "id": ("SELECT * FROM outbox.message_status WHERE id = %(id)s", {"id": "bigint"}, {"id": 12_077}),
            "message_id": (
                "SELECT * FROM outbox.message_status WHERE id = outbox.id_of(%(m)s) AND message_id = %(m)s",
                {"m": "uuid"},
                {"m": row[0]},
            ),
        }[by]
        watched = Prepared(asking, wanted[0], wanted[1])
        plan = watched.explain(wanted[2])
        found = watched.run(wanted[2])
    assert len(found) == 1
    assert "PUBLISHED" in found[0]
    assert {node["Relation Name"] for node in scans(plan, "message_p")} == {"message_p000000000012001"}
    assert buffers(plan) <= 200
