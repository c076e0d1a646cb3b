"""Plans of what the publishing loop writes: each statement reads the holds and messages that it concerns only.

Prepared on empty tables in the relay's own session, and executed again when they are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox_relay.publisher.hands.writes import STATEMENTS
from outbox_relay.publisher.records import FIRST_BYTES, LONGEST_KEY
from tests.support.much_held import EACH, EPOCH, KEYS, session_of_a_relay, watch
from tests.support.plain_inserts import Connection
from tests.support.query_plans import Plan, Prepared, rows_read

IDS = {"ids": "bigint[]"}
NUMBERS = {"numbers": "bigint[]"}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A relay's session; statistics stay as they are."""
    with session_of_a_relay(database) as conn:
        yield conn


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "own")
def test_ownership_reads_lanes_only(conn: Connection) -> None:
    types = {"epoch": "bigint", "owner": "text", "mine": "smallint[]"}
    values = {"epoch": EPOCH, "owner": "relay-1", "mine": "{3,4}"}
    plan = watch(conn, STATEMENTS["own"], types, values).explain(values)
    assert rows_read(plan, "lane") <= 8
    assert rows_read(plan, "parked_key") == rows_read(plan, "waiting") == 0


@pytest.mark.plan(
    "relay/outbox_relay/publisher/hands/writes.sql", "fail_holds", "end_requests", "retract", "let_go"
)
@pytest.mark.parametrize("name", ["fail_holds", "end_requests", "retract", "let_go"])
def test_a_change_of_a_hold_reads_that_hold(conn: Connection, name: str) -> None:
    types = dict(NUMBERS)
    values: dict[str, Any] = {"numbers": [500]}
    if name == "fail_holds":
        types |= {"heads": "bigint[]", "errors": "text[]"}
        values |= {"heads": [501], "errors": ["X"]}
    if name == "end_requests":
        types |= {"until": "float8[]"}
        values |= {"until": [2e9]}
    plan = watch(conn, STATEMENTS[name], types, values).explain(values)
    assert rows_read(plan, "parked_key") <= 3
    assert rows_read(plan, "waiting") <= 1


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "waits")
def test_one_message_of_each_shows_that_something_waits_for_holds(conn: Connection) -> None:
    plan = watch(conn, STATEMENTS["waits"], dict(NUMBERS), {"numbers": [500]}).explain(
        {"numbers": [500, 505]}
    )
    assert rows_read(plan, "waiting") == 2


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "widen")
def test_what_waits_for_partitions_by_different_counts_is_read_by_its_holds(conn: Connection) -> None:
    types = {"topics": "text[]", "epoch": "bigint", "owner": "text", "mine": "smallint[]"}
    values = {"topics": ["t"], "epoch": EPOCH, "owner": "relay-1", "mine": "{3,4}"}
    watched = watch(conn, STATEMENTS["widen"], types, values)
    conn.execute(
        "UPDATE outbox.parked_key SET order_key = NULL, queue = NULL, partition = 1, partitions = 4, topic = 't' "
        "WHERE number = (SELECT min(number) FROM outbox.parked_key WHERE lane = 3 AND number > 0)"
    )
    plan = watched.explain(values)
    assert 0 < rows_read(plan, "waiting") <= 2 * EACH
    assert rows_read(plan, "parked_key") <= 2 * KEYS


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "settle")
def test_settling_reads_what_it_settles(conn: Connection) -> None:
    plan = watch(conn, STATEMENTS["settle"], IDS, {"ids": [500]}).explain({"ids": [500, 501]})
    assert rows_read(plan, "waiting") == 2


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "announce")
@pytest.mark.parametrize("most", [1, 100])
def test_an_announcement_reads_its_holds(conn: Connection, most: int) -> None:
    types = {"holds": "integer[]", "numbers": "bigint[]", "sinces": "bigint[]", "most": "bigint"}
    values = {"holds": [0, 1], "numbers": [500, 505], "sinces": [0, 0], "most": most}
    plan = watch(conn, STATEMENTS["announce"], types, values).explain(values)
    assert rows_read(plan, "parked_key") <= 4
    assert rows_read(plan, "waiting") == 2 * min(most + 1, EACH)


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "holds", "requested")
def test_a_lanes_holds_are_read_by_lane(conn: Connection) -> None:
    of_holds = {"lanes": "smallint[]", "longest": "integer", "first": "integer"}
    values: dict[str, Any] = {"lanes": "{3}", "longest": LONGEST_KEY, "first": FIRST_BYTES}
    plan = watch(conn, STATEMENTS["holds"], of_holds, values).explain(values)
    assert rows_read(plan, "parked_key") <= KEYS // 8
    assert rows_read(plan, "waiting") <= KEYS // 8, "the first of each"
    conn.execute("DEALLOCATE watched")
    conn.execute("TRUNCATE outbox.parked_key, outbox.waiting")
    types = {"lanes": "smallint[]", "most": "bigint", "without": "bigint[]"}
    asked = {"lanes": "{4,5}", "most": 9, "without": "{}"}
    watched = watch(conn, STATEMENTS["requested"], types, asked)
    conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp() WHERE number IN (500, 505)")
    plan = watched.explain(asked)
    assert plan["Actual Rows"] == 2
    assert rows_read(plan, "parked_key") <= 2


def claim(conn: Connection, **given: Any) -> Plan:
    """Explain a claim of one message."""
    types = {
        **IDS, "message_ids": "uuid[]", "reasons": "text[]", **NUMBERS, "places": "bigint[]", "doubtful": "boolean[]",
    }  # fmt: skip
    values: dict[str, Any] = {
        "ids": [7], "message_ids": ["0" * 32], "reasons": ["held"], "numbers": [None], "places": [7],
        "doubtful": [False],
    }  # fmt: skip
    return watch(conn, STATEMENTS["claim"], types, values).explain({**values, **given})


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "claim", "begin_holds")
def test_a_claim_reads_its_hold_and_nothing_that_waits(conn: Connection) -> None:
    plan = claim(conn, ids=[2], numbers=[500])
    assert rows_read(plan, "parked_key") <= 1
    assert rows_read(plan, "waiting") == 0
    conn.execute("DEALLOCATE watched")
    types = {
        **NUMBERS, "lanes": "smallint[]", "topics": "text[]", "parts": "integer[]", "partitions": "integer[]",
        "selectors": "text[]", "queues": "integer[]",
        "order_keys": "bytea[]", "heads": "bigint[]", "errors": "text[]",
    }  # fmt: skip
    values = {
        "numbers": [7], "lanes": [4], "topics": ["u"], "parts": [None], "partitions": [None], "selectors": [None],
        "queues": [None], "order_keys": [b"k"],
        "heads": [7], "errors": ["X"],
    }  # fmt: skip
    watched = Prepared(conn, STATEMENTS["begin_holds"], types)
    assert rows_read(watched.explain(values), "parked_key") == 0


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "claim")
def test_a_doubtful_claim_of_what_has_expired_reads_what_spans_it(conn: Connection) -> None:
    conn.execute(
        "INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets) "
        "SELECT 1, i, i * 10, i * 10 + 9, '{4}', '1:1:', ARRAY[i * 10], '{0}', '{0}' FROM generate_series(1, 500) i"
    )
    plan = claim(conn, reasons=["expired"], numbers=[None], doubtful=[True], places=[70])
    assert rows_read(plan, "publication") <= 2


@pytest.mark.plan("relay/outbox_relay/publisher/hands/writes.sql", "end_announcements")
def test_a_taken_lane_reads_of_a_topic_what_was_announced(conn: Connection) -> None:
    types = {"epoch": "bigint", "owner": "text", "lanes": "smallint[]"}
    values: dict[str, Any] = {"epoch": EPOCH, "owner": "relay-1", "lanes": "{4}"}
    watched = watch(conn, STATEMENTS["end_announcements"], types, values)
    conn.execute(
        "INSERT INTO outbox.parked_key (number, lane, topic, head, error, draining_at, draining_to) "
        "VALUES (-100001, 4, 'u', 100001, 'X', clock_timestamp(), 100020)"
    )
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
        "SELECT i, gen_random_uuid(), 'parked', -100001, i FROM generate_series(100001, 105000) i"
    )
    plan = watched.explain(values)
    assert rows_read(plan, "waiting") == 20
    assert rows_read(plan, "parked_key") <= 4 * (KEYS // 8 + 2), "those of the lane"
    (doubted,) = conn.execute("SELECT count(*) FROM outbox.waiting WHERE in_doubt").fetchone() or (0,)
    assert doubted == 20
