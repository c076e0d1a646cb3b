"""The console's own statements stay cheap however much there is."""

from __future__ import annotations

import pytest

from outbox_relay.console.reader import STATEMENTS as SQL
from outbox_relay.operations.archive import STATEMENTS as ARCHIVE
from outbox_relay.operations.status import STATEMENTS as STATUS
from tests.integration.inbox.test_dlq_plans import explain
from tests.support.plain_inserts import Connection
from tests.support.publications import own_lanes
from tests.support.query_plans import rows_read

PUBLISHED = 20_000
FILL = f"""
    INSERT INTO outbox.message (topic, key, body) SELECT 'orders', 'k', 'b' FROM generate_series(1, {PUBLISHED}) i;
    INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets)
        SELECT 1, m.id, m.id, m.id, '{{0}}', pg_current_snapshot(), ARRAY[m.id], ARRAY[0], ARRAY[m.id]
        FROM outbox.message m
"""
CERTIFIED = """
    INSERT INTO outbox.certificate (target, system_identifier, timeline, database, warehouse, held, window_lo,
        window_hi, messages, problems, checksum)
    SELECT 'w' || t, 1, 1, 1, 'w', '{}', (100 * i)::text::xid8, (100 * i + 100)::text::xid8, 7, 0, ''
    FROM generate_series(1, 3) t, generate_series(1, 2000) i
"""


@pytest.mark.plan("relay/outbox_relay/console/console.sql", "latency")
@pytest.mark.parametrize("analyzed", [False, True])
def test_the_latency_is_read_from_the_newest_batches(conn: Connection, analyzed: bool) -> None:
    own_lanes(conn)
    conn.execute(FILL)
    if analyzed:
        conn.execute("ANALYZE outbox.message, outbox.publication")
    with conn.transaction():
        conn.execute(STATUS["prefer_indexes"])
        plan = explain(conn, SQL["latency"], window=60.0)
    assert rows_read(plan, "publication") <= 400
    assert rows_read(plan, "message") <= 1000
    [(median, highest)] = conn.execute(SQL["latency"], {"window": 60.0}).fetchall()
    assert 0 <= median <= highest


@pytest.mark.plan("relay/outbox_relay/console/console.sql", "certificates")
@pytest.mark.plan("relay/outbox_relay/operations/archive.sql", "certificates", "partition")
def test_certificates_are_few_and_found_by_the_window(conn: Connection) -> None:
    conn.execute(CERTIFIED)
    found = conn.execute(ARCHIVE["certificates"], {"xid": "5050"}).fetchall()
    assert [(row[0], row[2], row[3]) for row in found] == [(f"w{n}", 5000, 5100) for n in (1, 2, 3)]
    assert conn.execute(ARCHIVE["certificates"], {"xid": "1"}).fetchall() == []
    assert len(conn.execute(SQL["certificates"]).fetchall()) == 60
    # A row for each verification: a year of one each ten minutes is 50,000.
    plan = explain(conn, ARCHIVE["certificates"], xid="5050")
    assert rows_read(plan, "certificate") <= 4 * 6000
    assert rows_read(explain(conn, ARCHIVE["partition"], id=1), "message") == 0, "the catalog is enough"
