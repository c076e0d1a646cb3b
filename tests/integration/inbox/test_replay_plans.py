"""What a replay reads: the messages that are chosen, and of a group's parked messages those of a batch."""

from __future__ import annotations

from typing import Any

from outbox_relay.operations.replay_plan import STATEMENTS as REPLAYS
from outbox_relay.operations.replay_source import STATEMENTS as SOURCE
from tests.support.plain_inserts import Connection
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.query_plans import Plan, rows_read

COUNT = 5_000
SEND = f"""
    INSERT INTO outbox.message (topic, key, body, lane)
    SELECT 't', convert_to('k' || n, 'UTF8'), 'b', 0 FROM generate_series(1, {COUNT}) n
"""
PARK = """
    INSERT INTO outbox.consumer_group (name, subscription, orderly) VALUES ('g', '{}', true);
    INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t');
    INSERT INTO outbox.inbox_held_key SELECT 1, 1, convert_to('k' || n, 'UTF8') FROM generate_series(1, 1000) n;
    INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key,
            header_names, header_values, published_at, state, attempts, replay)
        SELECT 1, gen_random_uuid(), '2026-11-01', 1, 0, n, 'd', convert_to('k' || n % 1000 + 1, 'UTF8'),
            '{}', '{}', now(), 'waiting', 0, 1
        FROM generate_series(1, 10000) n;
    ANALYZE outbox.inbox_parked, outbox.inbox_held_key
"""


def explain(conn: Connection, statement: str, **values: Any) -> Plan:
    """Run a statement as the command does, and return its plan."""
    row = conn.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", values).fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


def test_messages_that_are_named_are_found_by_their_ids(conn: Connection) -> None:
    conn.execute(SEND)
    own_lanes(conn)
    found = positions(conn)
    for number, begin in enumerate(range(0, COUNT, 500)):
        record(conn, found[begin : begin + 500], seen=snapshot(conn), batch=number)
    conn.execute("ANALYZE outbox.message, outbox.publication")
    nothing = dict.fromkeys(("key", "since", "until"))
    ids = [id_ for (id_,) in conn.execute("SELECT id FROM outbox.message ORDER BY id LIMIT 3").fetchall()]
    plan = explain(
        conn, SOURCE["chosen"], topic="t", published_before="infinity", limit=10, **nothing | {"ids": ids}
    )
    assert plan["Actual Rows"] == len(ids)
    assert rows_read(plan, "message") == 2 * len(ids), "as the view has them, and what it lacks"


def test_the_first_messages_of_a_batch_are_promoted_without_reading_the_others(conn: Connection) -> None:
    conn.execute(PARK)
    batch = [b"k1", b"k2"]
    plan = explain(conn, REPLAYS["promote"], id=1, group_id=1, topic_id=1, keys=batch)
    assert rows_read(plan, "inbox_parked") == 2 * len(batch)
    promoted = conn.execute("SELECT count(*) FROM outbox.inbox_parked WHERE state = 'retry'").fetchone()
    assert promoted == (len(batch),)
