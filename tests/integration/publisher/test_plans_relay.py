"""Plans of what the relay does beside polling: topics, lanes, retries, backlogs, what falls due, partitions, repairs.

Prepared on empty tables in the relay's own session, and looked at when they are full.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from psycopg import sql

from outbox_relay.publisher.finder import STATEMENTS as FINDER
from outbox_relay.publisher.finder import Finder, Slice, prepare_session
from outbox_relay.publisher.lease import STATEMENTS as LANES
from outbox_relay.publisher.snapshot import Difference, Snapshot
from outbox_relay.publisher.topics import STATEMENTS as TOPICS
from outbox_relay.publisher.upkeep import STATEMENTS as UPKEEP
from tests.support.bare_reader import narrow_partitions
from tests.support.lanes import take
from tests.support.plain_inserts import Connection, connect_as_service, insert_numbered
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.query_plans import Plan, Prepared, nodes, removed, rows_read, scans

WIDTH, COUNT = 1_000, 10
ALL_LANES = list(range(8))
EPOCH = 7


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A relay's session; statistics stay as they are, so that plans are not made anew behind the test's back."""
    with connect_as_service(database) as conn:
        narrow_partitions(conn, width=WIDTH, count=COUNT)
        tables = conn.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'"
        ).fetchall()
        for (table,) in tables:
            name = sql.Identifier("outbox", table)
            conn.execute(sql.SQL("ALTER TABLE {} SET (autovacuum_enabled = false)").format(name))
        prepare_session(conn)
        yield conn


def early(
    conn: Connection, statement: sql.Composed | str, types: Mapping[str, str], first: Mapping[str, Any]
) -> Prepared:
    """Prepare a statement, and execute it on the empty tables, so that its plan is made."""
    prepared = Prepared(conn, statement, types)
    with conn.transaction(force_rollback=True):
        prepared.explain(first)
    return prepared


def fill_and_record(conn: Connection) -> None:
    """Commit rows, and record all of them as published in batches of fifty."""
    fill(conn)
    own_lanes(conn, EPOCH)
    done, seen = positions(conn), snapshot(conn)
    for batch in range(0, len(done), 50):
        record(conn, done[batch : batch + 50], epoch=EPOCH, batch=batch // 50, seen=seen)


def fill(conn: Connection) -> None:
    """Commit rows into all partitions but the last, in transactions of a hundred."""
    for number in range(COUNT - 1):
        conn.execute("SELECT setval('outbox.position', %s, false)", [number * WIDTH + 1])
        for _ in range(5):
            insert_numbered(conn, "t", 100)


def add_topics(conn: Connection, count: int) -> None:
    conn.execute(
        "INSERT INTO outbox.topic (name, partitions) SELECT 't' || i, 3 FROM generate_series(1, %s) i",
        [count],
    )


def no_table_is_read_through(plan: Plan) -> None:
    """Except that of the lanes, which has eight rows."""
    read = [node for node in nodes(plan) if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    assert not [name for node in read if (name := node.get("Relation Name")) != "lane"]


@pytest.mark.plan("relay/outbox_relay/publisher/topics.sql", "topics")
def test_topics_are_read_by_name_however_many_are_registered(conn: Connection) -> None:
    watched = early(conn, TOPICS["topics"], {"names": "text[]"}, {"names": "{a}"})
    add_topics(conn, 5_000)
    plan = watched.explain({"names": [f"t{i}" for i in range(4_900, 5_200)]})
    no_table_is_read_through(plan)
    assert rows_read(plan, "topic") == 101


@pytest.mark.plan("relay/outbox_relay/publisher/topics.sql", "pin")
def test_registering_topics_reads_none_of_those_that_are(conn: Connection) -> None:
    watched = early(
        conn,
        TOPICS["pin"],
        {"names": "text[]", "partitions": "integer[]", "limits": "integer[]"},
        {"names": ["a"], "partitions": [1], "limits": [1_000]},
    )
    add_topics(conn, 5_000)
    names = [f"t{i}" for i in range(4_901, 5_201)]
    plan = watched.explain({"names": names, "partitions": [3] * 300, "limits": [1_000_000] * 300})
    assert rows_read(plan, "topic") == 0
    assert plan["Conflict Arbiter Indexes"] == ["topic_pkey"]
    assert (plan["Tuples Inserted"], plan["Conflicting Tuples"]) == (200, 100)


@pytest.mark.plan("relay/outbox_relay/publisher/topics.sql", "seen")
def test_noting_partition_counts_reads_the_named_topics_only(conn: Connection) -> None:
    watched = early(
        conn,
        TOPICS["seen"],
        {"names": "text[]", "partitions": "integer[]"},
        {"names": ["a"], "partitions": [1]},
    )
    add_topics(conn, 5_000)
    plan = watched.explain({"names": [f"t{i}" for i in range(4_901, 5_201)], "partitions": [4] * 300})
    no_table_is_read_through(plan)
    assert rows_read(plan, "topic") <= 200, "100 that are registered, each locked and then changed"


@pytest.mark.plan("relay/outbox_relay/publisher/lanes.sql", "floors")
def test_floors_are_read_from_the_last_publications_however_many_there_are(conn: Connection) -> None:
    watched = early(conn, LANES["floors"], {}, {})
    fill_and_record(conn)
    plan = watched.explain({})
    assert plan["Actual Rows"] == len(ALL_LANES)
    no_table_is_read_through(plan)
    assert rows_read(plan, "publication_p") <= len(ALL_LANES) * COUNT, "the newest of each partition at most"


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "recorded")
def test_the_last_recorded_offsets_are_read_from_the_newest_publications(conn: Connection) -> None:
    types = {"epoch": "bigint", "publications": "bigint", "messages": "bigint", "topics": "text[]"}
    values = {"epoch": EPOCH + 1, "publications": 3, "messages": 120, "topics": ["t"]}
    watched = early(conn, FINDER["recorded"], types, values)
    fill_and_record(conn)
    plan = watched.explain(values)
    no_table_is_read_through(plan)
    assert rows_read(plan, "publication_p") <= COUNT + 3
    assert 0 < rows_read(plan, "message_p") <= 120


@pytest.mark.plan("relay/outbox_relay/publisher/lanes.sql", "has_foreign_xids")
def test_foreign_xids_are_looked_for_at_the_end_of_the_index(conn: Connection) -> None:
    values = {"is_copied": False}
    watched = early(conn, LANES["has_foreign_xids"], {"is_copied": "boolean"}, values)
    fill(conn)
    plan = watched.explain(values)
    no_table_is_read_through(plan)
    assert rows_read(plan, "message_p") == 0


@pytest.mark.plan("relay/outbox_relay/publisher/lanes.sql", "is_copied")
def test_whether_a_database_is_a_copy_is_asked_of_its_newest_publication(conn: Connection) -> None:
    watched = early(conn, LANES["is_copied"], {}, {})
    fill(conn)
    done, seen = positions(conn), snapshot(conn)
    for batch in range(0, len(done), 50):
        record(conn, done[batch : batch + 50], epoch=EPOCH, batch=batch // 50, seen=seen)
    plan = watched.explain({})
    assert rows_read(plan, "publication_p") <= COUNT, "the newest of each partition at most"


@pytest.mark.plan("relay/outbox_relay/publisher/upkeep.sql", "next_due")
@pytest.mark.parametrize("begins", ["never vacuumed", "vacuumed"])
def test_the_next_delayed_message_is_the_first_of_an_index(conn: Connection, begins: str) -> None:
    if begins == "vacuumed":
        conn.execute("VACUUM ANALYZE outbox.waiting")
    watched = early(conn, UPKEEP["next_due"], {"since": "text"}, {"since": "-infinity"})
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, due_at) "
        "SELECT i, gen_random_uuid(), 'delayed', now() + i * interval '1 s' FROM generate_series(1, 5000) i"
    )
    plan = watched.explain({"since": "-infinity"})
    no_table_is_read_through(plan)
    assert rows_read(plan, "waiting") == 1


@pytest.mark.plan("relay/outbox_relay/publisher/upkeep.sql", "repair")
def test_a_repair_reads_what_it_repairs(conn: Connection) -> None:
    """It is so rare that it is not prepared: planned when it is needed, whatever the statistics say."""
    narrow_partitions(conn, width=20_000, count=4)
    insert_numbered(conn, "t", 60_000)
    ids = list(range(25_001, 25_101))
    held = take(conn, "me", 60)
    values = {"ids": ids, "epoch": held.epoch, "owner": held.owner}
    row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {UPKEEP['repair']}", values).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    no_table_is_read_through(plan)
    assert rows_read(plan, "message_p") == 2 * len(ids), (
        "to lock those that no other session holds, and to write"
    )


@pytest.mark.plan("relay/outbox_relay/publisher/upkeep.sql", "unsettled")
def test_a_settled_partition_is_seen_from_its_index(conn: Connection) -> None:
    table = sql.Identifier("outbox", "message_p000000000002001")
    statement = sql.SQL(UPKEEP["unsettled"]).format(partition=table)
    bounds = {"lower": 2_001, "upper": 3_001, "xmax": str(1 << 62), "xip": "{3}"}
    types = {"lower": "bigint", "upper": "bigint", "xmax": "xid8", "xip": "xid8[]"}
    watched = early(conn, statement, types, bounds)
    fill(conn)
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason) "
        "SELECT i, gen_random_uuid(), 'held' FROM generate_series(10001, 15000) i"
    )
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
        "SELECT i, gen_random_uuid(), 'parked', -9, i FROM generate_series(15001, 20000) i"
    )
    plan = watched.explain(bounds)
    no_table_is_read_through(plan)
    assert rows_read(plan, "message_p") == 0
    assert rows_read(plan, "waiting") == 0
    for id_, place in ((2_500, None), (2_500, 30_000), (30_000, 2_500)):
        conn.execute(
            "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
            "VALUES (%s, gen_random_uuid(), 'expired', CASE WHEN %s::bigint IS NOT NULL THEN -9 END, %s)",
            [id_, place, place],
        )
        assert watched.run(bounds)[0][0], "by its message, or by its place"
        conn.execute("DELETE FROM outbox.waiting WHERE id = %s", [id_])


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "backlog", "backlog_branch")
def test_a_backlog_is_listed_from_the_finders_index_and_reads_nothing_published(conn: Connection) -> None:
    """It is not prepared: its plan is made each time, here with statistics that are older than all rows."""
    finder = Finder(conn)
    names = [f"message_p{1 + number * WIDTH:015}" for number in range(COUNT)]
    finder.name_partitions(tuple(names))
    fill(conn)
    previous = finder.here()[0]
    conn.execute("SELECT setval('outbox.position', %s, false)", [(COUNT - 1) * WIDTH + 1])
    insert_numbered(conn, "t", 300)
    current = finder.here()[0]
    plan = explain_backlog(conn, finder, previous, current, Slice(frozenset(ALL_LANES)))
    no_table_is_read_through(plan)
    assert plan["Actual Rows"] == 300
    assert rows_read(plan, "message_p") <= 2 * 300, "by both branches at most"
    assert all("xid_lane" in node["Index Name"] for node in scans(plan, "message_p"))


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "backlog_branch", "topics")
def test_a_topic_that_is_read_apart_is_listed_without_the_rows_of_others(conn: Connection) -> None:
    finder = Finder(conn)
    finder.name_partitions((f"message_p{1:015}",))
    previous = finder.here()[0]
    insert_numbered(conn, "many", 900)
    insert_numbered(conn, "few", 5)
    row = conn.execute("SELECT hashtext('many'), hashtext('few')").fetchone()
    assert row is not None
    many, few = row
    lanes = frozenset(ALL_LANES)
    for scope in (Slice(lanes, topic=few), Slice(lanes, without=frozenset({many}))):
        plan = explain_backlog(conn, finder, previous, finder.here()[0], scope)
        no_table_is_read_through(plan)
        assert plan["Actual Rows"] == 5
        assert rows_read(plan, "message_p") <= 10, "by both branches at most"
        assert removed(plan) == 0


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "published")
def test_publications_of_a_page_are_found_by_what_they_span(conn: Connection) -> None:
    bounds = {"positions": "{1,2,3}", "lowest": 1, "highest": 3}
    types = {"positions": "bigint[]", "lowest": "bigint", "highest": "bigint"}
    watched = early(conn, FINDER["published"], types, bounds)
    seen = snapshot(conn)
    for batch in range(500):
        record(conn, range(10 * batch + 1, 10 * batch + 11), seen=seen, batch=batch)
    plan = watched.explain(bounds)
    no_table_is_read_through(plan)
    assert plan["Actual Rows"] == 3
    assert rows_read(plan, "publication_p") == 1


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "published")
def test_positions_of_a_page_are_hashed_to_compare_them_with_publications(conn: Connection) -> None:
    """Compared one by one, a page next to a million published positions would take a minute."""
    few = {"positions": "{1,2,3}", "lowest": 1, "highest": 3}
    types = {"positions": "bigint[]", "lowest": "bigint", "highest": "bigint"}
    watched = early(conn, FINDER["published"], types, few)
    seen = snapshot(conn)
    for batch in range(50):
        record(conn, range(100 * batch + 1, 100 * batch + 100), seen=seen, batch=batch)
    plan = watched.explain({"positions": list(range(1, 5_001, 5)), "lowest": 1, "highest": 4_996})
    assert plan["Actual Rows"] == 1_000, "99 of 100 are published, and these are among them"
    (joined,) = [node for node in nodes(plan) if "Join" in node["Node Type"]]
    assert joined["Hash Cond"]
    assert removed(plan) == 0, "no position is compared with one that it is not"


@pytest.mark.plan("relay/outbox_relay/publisher/finder.sql", "unpublished_by_topic", "no_publication")
def test_what_is_published_since_a_floor_is_hashed_and_not_counted(conn: Connection) -> None:
    """Its plan is made each time: a generic one, here with statistics that are older than all rows."""
    finder, scope = Finder(conn, page=100), Slice(frozenset(ALL_LANES))
    finder.name_partitions(tuple(f"message_p{1 + number * WIDTH:015}" for number in range(COUNT)))
    floor = finder.here()[0]
    insert_numbered(conn, "few", 300)
    seen, done = snapshot(conn), positions(conn)
    for batch in range(10):
        record(conn, done[batch * 30 : batch * 30 + 30], seen=seen, batch=batch)
    insert_numbered(conn, "few", 200, start=300)
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason) SELECT id, message_id, 'expired' FROM outbox.message "
        "WHERE position > %s",
        [max(done)],
    )
    insert_numbered(conn, "many", 500)
    current, row = finder.here()[0], conn.execute("SELECT hashtext('many')").fetchone()
    assert row is not None
    assert finder.unpublished_by_topic(floor, current, scope) == {row[0]: 101}, "more than a page is enough"
    conn.execute(FINDER["nested_loops"], {"on": "off"})
    statement = sql.SQL(FINDER["unpublished_by_topic"])
    watched = Prepared(
        conn,
        statement.format(
            branches=finder.branches("backlog_branch", scope), unpublished=sql.SQL(FINDER["no_publication"])
        ),
        {"first0": "smallint", "last0": "smallint", "xmax": "xid8", "xip": "xid8[]", "cur_xmax": "xid8",
         "cur_xip": "xid8[]", "since": "xid8", "page": "bigint"},
    )  # fmt: skip
    bounds = {"xmax": str(floor.xmax), "xip": floor.xip_array, "cur_xmax": str(current.xmax),
              "cur_xip": current.xip_array, "since": str(floor.xmin), "page": 100}  # fmt: skip
    plan = watched.explain(bounds | scope.values)
    compared = [node for node in nodes(plan) if "Join" in node["Node Type"] or "Loop" in node["Node Type"]]
    assert len(compared) == 2, "with publications, and with what has expired"
    assert all(node.get("Hash Cond") or node.get("Merge Cond") for node in compared)
    assert removed(plan) == 0
    assert rows_read(plan, "message_p") == 500 + 101, "it ends when more than a page is found"
    listing = finder.backlog(Difference(floor, current, is_partial=True), scope)
    assert list(listing.take()) == positions(conn)[500:], "what has expired is not listed"


def explain_backlog(
    conn: Connection, finder: Finder, previous: Snapshot, current: Snapshot, scope: Slice
) -> Plan:
    """Explain what the cursor of a backlog reads."""
    declared = FINDER["backlog"]
    branches = finder.branches("backlog_branch", scope)
    query = sql.SQL(declared[declared.index("SELECT") :]).format(branches=branches, unpublished=sql.SQL(""))
    values = {
        "xmax": str(previous.xmax),
        "xip": previous.xip_array,
        "cur_xmax": str(current.xmax),
        "cur_xip": current.xip_array,
        **scope.values,
    }
    row = conn.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + query, values).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan
