"""Half messages are listed at once however many there are: pages come from the index of what is unsettled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql

from outbox_relay.operations import bulk_decisions, half_messages
from outbox_relay.operations.decide import STATEMENTS as DECIDE
from outbox_relay.operations.half_messages import STATEMENTS, HalfMessageFilter
from tests.support.plain_inserts import Connection, connect
from tests.support.query_plans import Plan, buffers, nodes, scans

# All in one process: its database takes longer to fill than the statements take.
pytestmark = pytest.mark.xdist_group("tx plans")

FLOOD = 100_000
"""So many that a plan that reads them all touches thousands of pages."""
FILL = """
    INSERT INTO outbox.message (topic, state, producer_group, index_keys, biz_id)
    SELECT 'orders', 'UNKNOWN', %(group)s, ARRAY['order-' || i], 'p-' || i FROM generate_series(1, %(rows)s) i
"""


@pytest.fixture(scope="module")
def conn(request: pytest.FixtureRequest) -> Iterator[Connection]:
    """One group with a flood, fifty with a few, and statistics from before all of them."""
    databases = request.getfixturevalue("_shared_databases")
    with connect(databases.make()) as connection:
        connection.execute("ANALYZE outbox.message")
        connection.execute(FILL, {"group": "flood", "rows": FLOOD})
        for number in range(50):
            connection.execute(FILL, {"group": f"g{number:02}", "rows": 5})
        connection.execute(
            "UPDATE outbox.message SET state = 'EXHAUSTED' WHERE producer_group = 'g25' AND biz_id = 'p-1'"
        )
        yield connection
    databases.drop_made()


def explain(conn: Connection, chosen: HalfMessageFilter) -> Plan:
    """Run the very statement of a page, under its settings."""
    statement, values = half_messages.compose(chosen, 21)
    with conn.transaction():
        conn.execute(STATEMENTS["settings"], {"bitmaps": "off" if chosen.index_key is None else "on"})
        row = conn.execute(sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ") + statement, values).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


@pytest.mark.parametrize("analyzed", [False, True], ids=["young statistics", "analyzed"])
@pytest.mark.parametrize(
    "chosen",
    [
        HalfMessageFilter(),
        HalfMessageFilter(producer_group="flood"),
        HalfMessageFilter(producer_group="flood", after=FLOOD // 2),
        HalfMessageFilter(producer_group="g49"),
        HalfMessageFilter(topic="orders"),
        HalfMessageFilter(index_key="order-77777"),
        HalfMessageFilter(producer_group="flood", index_key="order-77777"),
    ],
    ids=["all", "flood", "next page", "few", "frequent", "index key", "index key of the flood"],
)
def test_a_page_is_read_from_an_index_however_many_there_are(
    conn: Connection, chosen: HalfMessageFilter, analyzed: bool
) -> None:
    if analyzed:
        conn.execute("ANALYZE outbox.message")
    plan = explain(conn, chosen)
    assert not [node for node in scans(plan, "message_p") if node["Node Type"] == "Seq Scan"]
    assert max(int(node["Actual Rows"]) * int(node["Actual Loops"]) for node in nodes(plan)) < 2_000
    assert buffers(plan) < 3_000


def test_the_groups_are_stepped_through_and_the_oldest_of_all_are_the_page(conn: Connection) -> None:
    rows = half_messages.page(conn, HalfMessageFilter(states=("EXHAUSTED",)), 10)
    assert [row["producer_group"] for row in rows] == ["g25"]
    ids = [row["id"] for row in half_messages.page(conn, HalfMessageFilter(), 500)]
    assert ids == sorted(ids)
    assert len(ids) == 500
    rest = half_messages.page(conn, HalfMessageFilter(after=FLOOD), 500)
    assert len(rest) == 250
    assert len({row["producer_group"] for row in rest}) == 50


def test_a_page_of_a_bulk_decision_reads_no_more_than_it_decides(conn: Connection) -> None:
    chosen = HalfMessageFilter(producer_group="flood", states=("UNKNOWN",))
    many = bulk_decisions.count_chosen(conn, chosen)
    assert many.messages == FLOOD
    conditions, values = chosen.conditions()
    values |= {
        "group": "flood",
        "verdict": "COMMITTED",
        "reason": "r",
        "last": many.last,
        "moment": many.moment,
        "limit": bulk_decisions.BULK_PAGE,
        "beyond": FLOOD // 2,
    }
    with conn.transaction(force_rollback=True):
        conn.execute(DECIDE["settings"])
        row = conn.execute(
            sql.SQL("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) ")
            + sql.SQL(DECIDE["decide_page"]).format(conditions=conditions),
            values,
        ).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    assert (
        max(int(node["Actual Rows"]) * int(node["Actual Loops"]) for node in nodes(plan))
        <= 4 * bulk_decisions.BULK_PAGE
    )
    assert not [node for node in scans(plan, "message_p") if node["Node Type"] == "Seq Scan"]
