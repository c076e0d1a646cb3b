"""Looking messages up stays cheap: the right index, few blocks, one partition, in 1 and in 30 partitions."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from psycopg import sql

from outbox_relay.operations import messages
from outbox_relay.operations.filters import Filters
from outbox_relay.publisher.lease import read_floors
from tests.support.bare_reader import narrow_partitions
from tests.support.plain_inserts import Connection, connect, insert, insert_numbered
from tests.support.publications import own_lanes, positions, record, snapshot

# All in one process: its databases take longer to fill than the statements take.
pytestmark = pytest.mark.xdist_group("private stack")

ROWS = {1: 60_000, 30: 150_000}
"""So many that a partition is worth an index, by number of partitions."""
FOREIGN = uuid.UUID("4bf92f35-77b3-4da6-a3ce-929d0e0e4736")

FILL = """
    INSERT INTO outbox.message (topic, key, body, index_keys, tags, producer_group, biz_id, transaction_id)
    SELECT 'orders', convert_to('key-' || i, 'UTF8'), convert_to(repeat('x', 200), 'UTF8'),
           ARRAY['order-' || i], '{created}', 'shop', CASE WHEN i %% 9 = 0 THEN 'biz-' || i END,
           CASE WHEN i %% 9 = 0 THEN 'tx-' || i END
    FROM generate_series(1, %(rows)s) i
"""


class Plan(NamedTuple):
    """What a statement did: the nodes that ran, by type, index and table, and the blocks it touched."""

    nodes: list[dict[str, Any]]
    blocks: int

    def ran(self, kind: str, part: str = "") -> list[str]:
        """The tables or indexes that nodes of this type read."""
        names = [
            str(node.get("Index Name") or node.get("Relation Name") or "") for node in self._executed(kind)
        ]
        return [name for name in names if part in name]

    def _executed(self, kind: str) -> list[dict[str, Any]]:
        return [node for node in self.nodes if node["Node Type"].startswith(kind) and node["Actual Loops"]]


@pytest.fixture(scope="module", params=[1, 30], ids=["1 partition", "30 partitions"])
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A database in which all rows are in the first partition, or spread over the first 30."""
    databases = request.getfixturevalue("_quiet_databases")
    dsn = databases.make()
    with connect(dsn) as connection:
        if request.param == 30:
            narrow_partitions(connection, width=ROWS[30] // 29, count=32)
        own_lanes(connection)
        connection.execute(FILL, {"rows": ROWS[request.param]})
        insert(connection, "rare", "rare", "b", message_id=FOREIGN, index_keys=["rare"])
        connection.execute("VACUUM ANALYZE outbox.message")
        todo = positions(connection)
        for batch in range(0, len(todo), 5000):
            _record(connection, todo[batch : batch + 5000], batch)
        connection.execute("ANALYZE outbox.publication")
        yield connection
    databases.drop_made()


def _record(conn: Connection, todo: list[int], batch: int) -> None:
    """Like the relay, no row across the bounds of two partitions."""
    bounds = [upper for (upper,) in conn.execute("SELECT upper FROM outbox.partition ORDER BY 1").fetchall()]
    seen = snapshot(conn)
    while todo:
        upper = next(bound for bound in bounds if bound > todo[0])
        part = [position for position in todo if position < upper]
        record(conn, part, seen=seen, batch=batch)
        todo = todo[len(part) :]


def explain(conn: Connection, filters: Filters, below: int = 0, top: int = 10**9) -> Plan:
    """Run the very statement of a search, over all ids unless a window is given."""
    statement, values = messages.compose(filters)
    values |= {"limit": 20, "below": below, "top": top} | messages.bind_floors(read_floors(conn))
    with conn.transaction():
        conn.execute(messages.SETTINGS["settings"])
        if messages.preferred(filters):
            conn.execute(messages.SETTINGS[messages.preferred(filters)])
        row = conn.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + statement, values).fetchone()
    assert row is not None
    root = row[0][0]["Plan"]
    found: list[dict[str, Any]] = []

    def walk(node: dict[str, Any]) -> None:
        found.append(node)
        for child in node.get("Plans", []):
            walk(child)

    walk(root)
    return Plan(found, root["Shared Hit Blocks"] + root["Shared Read Blocks"])


def own_id(conn: Connection, id: int) -> uuid.UUID:
    row = conn.execute("SELECT message_id FROM outbox.message WHERE id = %s", [id]).fetchone()
    assert row is not None
    return uuid.UUID(str(row[0]))


@pytest.mark.feature("S-86")
@pytest.mark.parametrize("by", ["id", "message_id"])
def test_a_look_up_by_id_reads_one_row_of_one_partition(conn: Connection, by: str) -> None:
    filters = Filters(id=33_333) if by == "id" else Filters(message_id=own_id(conn, 33_333))
    plan = explain(conn, filters)
    assert not plan.ran("Seq Scan", "message_p")
    read = plan.ran("Index", "message_p")
    assert len(set(read)) == 1
    assert read[0].endswith("_pkey")
    assert plan.blocks < 200


def test_a_foreign_message_id_has_its_own_index(conn: Connection) -> None:
    plan = explain(conn, Filters(message_id=FOREIGN))
    assert plan.ran("Index", "message_id_idx") or plan.ran("Bitmap Index", "message_id_idx")
    assert plan.blocks < 500


@pytest.mark.feature("S-32", "S-66", "S-86")
@pytest.mark.parametrize(
    ("filters", "index"),
    [
        (Filters(index_key="order-33333"), "index_keys_idx"),
        (Filters(key=b"key-33333"), "key_topic_idx"),
        (Filters(topic="rare"), "key_topic_idx"),
        (Filters(key=b"key-33333", topic="orders"), "key_topic_idx"),
        (Filters(biz_id="biz-33333"), "biz_id_idx"),
        (Filters(transaction_id="tx-33333"), "transaction_id_idx"),
        (Filters(since=0.001), "born_at_idx"),
        (Filters(status="UNKNOWN"), "producer_group_id_idx"),
    ],
    ids=["index key", "key", "rare topic", "key and topic", "biz id", "transaction id", "time", "undecided"],
)
def test_a_rare_match_is_found_by_its_index_in_every_partition(
    conn: Connection, filters: Filters, index: str
) -> None:
    plan = explain(conn, filters)
    assert plan.ran("Bitmap Index Scan", index) or plan.ran("Index Scan", index)
    big = {
        name
        for (name,) in conn.execute("SELECT relname FROM pg_class WHERE reltuples > 1000 AND relkind = 'r'")
    }
    assert not big & set(plan.ran("Seq Scan", "message_p"))
    table = sum(
        pages
        for (pages,) in conn.execute(
            "SELECT relpages FROM pg_class WHERE relname LIKE 'message_p%' AND relkind = 'r'"
        )
    )
    assert plan.blocks < table / 4


@pytest.mark.feature("S-31")
@pytest.mark.parametrize(
    "filters", [Filters(), Filters(tag="created"), Filters(topic="orders"), Filters(status="PUBLISHED")]
)
def test_a_frequent_match_ends_the_search_in_the_first_window(conn: Connection, filters: Filters) -> None:
    row = conn.execute("SELECT last_value FROM outbox.position").fetchone()
    assert row is not None
    below, top = row[0] - messages.FIRST_WINDOW, row[0]
    plan = explain(conn, filters, below, top)
    assert plan.blocks < 2_500
    searched: list[int] = []
    assert len(messages.search(conn, filters, 20, searched.append)) == 20
    assert not searched


def test_a_window_of_ids_is_read_by_the_block_ranges_of_a_key(conn: Connection) -> None:
    plan = explain(conn, Filters(key=b"key-33333"), 20_000, 35_000)
    assert plan.ran("Bitmap Index Scan", "key_topic_idx")
    assert not plan.ran("Index Scan", "message_p"), "the primary key leads to all rows of the window"
    assert plan.blocks < 300


@pytest.mark.feature("S-86")
def test_the_newest_id_before_a_time_is_found_by_few_rows(conn: Connection) -> None:
    row = conn.execute("SELECT born_at FROM outbox.message WHERE id = 33333").fetchone()
    assert row is not None
    assert messages.newest_before(conn, row[0]) == 33_332
    assert messages.newest_before(conn, row[0] - timedelta(days=1)) == 0
    now = conn.execute("SELECT last_value FROM outbox.position").fetchone()
    assert (messages.newest_before(conn, 0.0),) == now
    statement = sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + sql.SQL(
        messages.STATEMENTS["born_before"]
    )
    plan = conn.execute(statement, {"until": row[0]}).fetchone()
    assert plan is not None
    assert plan[0][0]["Plan"]["Shared Hit Blocks"] + plan[0][0]["Plan"]["Shared Read Blocks"] < 500


@pytest.mark.feature("S-31")
def test_a_time_long_ago_is_found_without_the_rows_of_other_times(conn: Connection) -> None:
    rows = conn.execute(
        "SELECT born_at FROM outbox.message WHERE id IN (39000, 40000) ORDER BY id"
    ).fetchall()
    searched: list[int] = []
    found = messages.search(conn, Filters(since=rows[0][0], until=rows[1][0]), 20, searched.append)
    assert [row["id"] for row in found] == list(range(39_999, 39_979, -1))
    assert searched == [40_000], "one window of all that is newer, and a small one"
    newer = explain(conn, Filters(since=rows[0][0], until=rows[1][0]), 40_000, 10**9)
    assert newer.blocks < 500, "what is newer has thousands of blocks"


def test_what_is_not_published_is_found_among_much_that_is(conn: Connection) -> None:
    plan = explain(conn, Filters(status="COMMITTED"))
    assert plan.ran("Index", "xid_lane_hashtext_idx") or plan.ran("Bitmap Index", "xid_lane_hashtext_idx")
    assert not plan.ran("Seq Scan", "message_p")
    assert plan.blocks < 1_000
    assert messages.search(conn, Filters(status="COMMITTED"), 20) == []


@pytest.mark.feature("S-66")
def test_a_message_without_business_and_transaction_id_is_not_in_their_indexes(database: str) -> None:
    sizes = """
        SELECT c.relname ~ 'biz_id', sum(pg_relation_size(c.oid))::int FROM pg_class c
        WHERE c.relname ~ '^message_p.*(biz_id|transaction_id)_idx$' GROUP BY 1 ORDER BY 1
    """
    with connect(database) as conn:
        empty = conn.execute(sizes).fetchall()
        assert len(empty) == 2
        insert_numbered(conn, "orders", 1_000)
        assert conn.execute(sizes).fetchall() == empty
        insert(conn, "orders", "k", "b", biz_id="p-7", transaction_id="t-7")
        assert all(after > before for (_, after), (_, before) in zip(conn.execute(sizes), empty, strict=True))
