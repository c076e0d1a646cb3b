"""Plans of parked keys: claims, drains and requests read what they concern, however many keys are parked.

Prepared on empty tables in the relay's own session, and looked at when they are full.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from outbox_relay.operations.dead_letters import STATEMENTS as DEAD_LETTERS
from outbox_relay.operations.holds import ALL, read_statement
from outbox_relay.operations.holds import STATEMENTS as HOLDS
from outbox_relay.publisher.kept_keys import FIRST_BYTES, LONGEST_KEY
from outbox_relay.publisher.parked import STATEMENTS as PARKED
from outbox_relay.publisher.recorder import STATEMENTS as RECORDER
from tests.support.much_held import EACH, EPOCH, KEYS, fill, session_of_a_relay, watch
from tests.support.plain_inserts import Connection
from tests.support.publications import record, snapshot
from tests.support.query_plans import Prepared, rows_read

LONG = {"longest": LONGEST_KEY, "first": FIRST_BYTES}
OWNED = {"epoch": "bigint", "owner": "text"}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A relay's session; statistics stay as they are."""
    with session_of_a_relay(database) as conn:
        yield conn


@pytest.mark.plan("relay/outbox_relay/publisher/parked.sql", "requested")
def test_requests_are_read_without_reading_all_keys(conn: Connection) -> None:
    values = {"lanes": "{4,5}", "without": "{}", "full": "{}", **LONG}
    types = {"lanes": "smallint[]", "without": "bigint[]", "full": "text[]", **dict.fromkeys(LONG, "integer")}
    watched = watch(conn, PARKED["requested"], types, values)
    conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp() WHERE number IN (500, 505)")
    plan = watched.explain(values)
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") <= 2
    conn.execute(
        "INSERT INTO outbox.parked_key (number, lane, topic, head, error) VALUES (-500, 4, 't', 500, 'X')"
    )
    plan = watched.explain(values)
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") <= 4


@pytest.mark.plan("relay/outbox_relay/publisher/parked.sql", "announce")
@pytest.mark.parametrize("most", [1, 100])
def test_an_announcement_reads_its_key(conn: Connection, most: int) -> None:
    types = {
        "lane": "smallint",
        "number": "bigint",
        "since": "bigint",
        "is_first": "boolean",
        "most": "bigint",
    }
    values: dict[str, Any] = {"lane": 4, "number": 500, "since": 0, "is_first": True, "most": most}
    values |= {"epoch": EPOCH, "owner": "relay-1"}
    plan = watch(conn, PARKED["announce"], {**OWNED, **types}, values).explain(values)
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") <= 2
    assert rows_read(plan, "waiting") == min(most, EACH)


@pytest.mark.plan("relay/outbox_relay/publisher/parked.sql", "keys", "held", "withdraw")
@pytest.mark.parametrize("name", ["keys", "held", "withdraw"])
def test_a_lanes_keys_are_read_by_lane(conn: Connection, name: str) -> None:
    values: dict[str, Any] = {"lanes": "{3}"}
    types = {"lanes": "smallint[]"}
    if name == "keys":
        values |= LONG
        types |= dict.fromkeys(LONG, "integer")
    if name == "withdraw":
        values |= {"epoch": EPOCH, "owner": "relay-1"}
        types |= OWNED
    plan = watch(conn, PARKED[name], types, values).explain(values)
    assert rows_read(plan, "parked_key") <= KEYS // 8
    of_each = {"keys": 1, "held": EACH, "withdraw": 0}[name]
    assert rows_read(plan, "waiting") <= KEYS // 8 * of_each


@pytest.mark.plan("relay/outbox_relay/publisher/parked.sql", "end_drains")
def test_a_taken_lane_reads_of_a_topic_what_its_drain_listed(conn: Connection) -> None:
    values = {"epoch": EPOCH, "owner": "relay-1", "lanes": "{4}"}
    watched = watch(conn, PARKED["end_drains"], {**OWNED, "lanes": "smallint[]"}, values)
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
    assert rows_read(plan, "parked_key") <= 2 * (KEYS // 8 + 2), (
        "those of the lane, once to lock it and once to find it"
    )
    (doubted,) = conn.execute("SELECT count(*) FROM outbox.waiting WHERE in_doubt").fetchone() or (0,)
    assert doubted == 20


@pytest.mark.plan("relay/outbox_relay/publisher/parked.sql", "held")
def test_what_waits_for_a_topic_is_not_counted(conn: Connection) -> None:
    watched = watch(conn, PARKED["held"], {"lanes": "smallint[]"}, {"lanes": "{3}"})
    conn.execute(
        "INSERT INTO outbox.parked_key (number, lane, topic, head, error) VALUES (-9, 3, 'u', 9, 'X')"
    )
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
        "SELECT i, gen_random_uuid(), 'parked', -9, i FROM generate_series(100001, 105000) i"
    )
    assert rows_read(watched.explain({"lanes": "{3}"}), "waiting") <= KEYS // 8 * EACH


@pytest.mark.plan("relay/outbox_relay/publisher/publications.sql", "drained")
def test_a_drain_is_recorded_by_its_key(conn: Connection) -> None:
    types = {
        **OWNED, "mine": "smallint[]", "number": "bigint", "done": "bigint[]", "is_whole": "boolean",
        "head": "bigint", "error": "text", "in_doubt": "boolean", "expired": "bigint[]",
    }  # fmt: skip
    values = {
        "epoch": EPOCH, "owner": "relay-1", "mine": "{4}", "number": 500, "done": [500, 501], "is_whole": False,
        "head": 502, "error": "X", "in_doubt": False, "expired": [503],
    }  # fmt: skip
    plan = watch(conn, RECORDER["drained"], types, values).explain(values)
    assert rows_read(plan, "waiting") <= 4
    assert rows_read(plan, "parked_key") <= 3


@pytest.mark.plan("relay/outbox_relay/publisher/publications.sql", "claim", "record_claims")
@pytest.mark.parametrize("name", ["claim", "record_claims"])
def test_claims_read_lanes_only(conn: Connection, name: str) -> None:
    types = {
        **OWNED, "mine": "smallint[]", "ids": "bigint[]", "message_ids": "uuid[]", "reasons": "text[]",
        "numbers": "bigint[]", "places": "bigint[]", "doubtful": "boolean[]", "heads": "bigint[]",
        "head_numbers": "bigint[]",
        "head_lanes": "smallint[]", "topics": "text[]", "queues": "integer[]", "order_keys": "bytea[]",
        "errors": "text[]",
    }  # fmt: skip
    values: dict[str, Any] = {
        "epoch": EPOCH, "owner": "relay-1", "mine": "{4}", "ids": [7], "message_ids": ["0" * 32],
        "reasons": ["failed"], "numbers": [7], "places": [7], "doubtful": [False], "heads": [7], "head_numbers": [7],
        "head_lanes": [4], "topics": ["u"], "queues": [None], "order_keys": [b"k"], "errors": ["X"],
    }  # fmt: skip
    if name == "record_claims":
        types |= {
            "locked": "smallint[]",
            "batch": "bigint", "lo": "bigint", "hi": "bigint", "lanes": "smallint[]", "base": "pg_snapshot",
            "snapshot": "pg_snapshot", "after": "bigint", "is_partial": "boolean", "positions": "bigint[]",
            "partitions": "integer[]", "offsets": "bigint[]",
        }  # fmt: skip
        values |= {
            "locked": "{4}",
            "batch": 9, "lo": 3, "hi": 3, "lanes": "{4}", "base": None, "snapshot": "1:1:", "after": None,
            "is_partial": True, "positions": [3], "partitions": [0], "offsets": [5],
        }  # fmt: skip
    watched = watch(conn, RECORDER[name], types, values)
    with conn.transaction(force_rollback=True):
        plan = watched.explain({**values, "ids": [1]})
    assert rows_read(plan, "parked_key") == 0
    assert rows_read(plan, "waiting") == 0
    with conn.transaction(force_rollback=True):
        heads = ("heads", "head_numbers", "head_lanes", "topics", "queues", "order_keys", "errors")
        nothing: dict[str, list[Any]] = {key: [] for key in heads}
        plan = watched.explain({**values, **nothing, "ids": [2], "numbers": [500], "reasons": ["held"]})
    assert rows_read(plan, "parked_key") <= 1, "the key that it is held for"


@pytest.mark.plan("relay/outbox_relay/publisher/publications.sql", "claim")
def test_a_doubtful_claim_of_an_expired_message_reads_what_spans_it(conn: Connection) -> None:
    types = {
        **OWNED, "mine": "smallint[]", "ids": "bigint[]", "message_ids": "uuid[]", "reasons": "text[]",
        "numbers": "bigint[]", "places": "bigint[]", "doubtful": "boolean[]", "head_numbers": "bigint[]",
        "heads": "bigint[]", "head_lanes": "smallint[]", "topics": "text[]", "queues": "integer[]",
        "order_keys": "bytea[]", "errors": "text[]",
    }  # fmt: skip
    heads = ("head_numbers", "heads", "head_lanes", "topics", "queues", "order_keys", "errors")
    nothing: dict[str, list[Any]] = {name: [] for name in heads}
    values: dict[str, Any] = {
        "epoch": EPOCH, "owner": "relay-1", "mine": "{4}", "ids": [20_001], "numbers": [None],
        "message_ids": ["0" * 32], "reasons": ["expired"], "places": [7], "doubtful": [True], **nothing,
    }  # fmt: skip
    watched = watch(conn, RECORDER["claim"], types, values)
    seen = snapshot(conn)
    for batch in range(300):
        record(conn, range(10 * batch + 1, 10 * batch + 11), seen=seen, batch=batch)
    plan = watched.explain(values)
    assert rows_read(plan, "publication_p") == 1
    for place, doubtful in ((7, False), (90_000, True)):
        watched.run({**values, "ids": [20_000 + place], "places": [place], "doubtful": [doubtful]})
    expired = conn.execute(
        "SELECT id, place FROM outbox.waiting WHERE reason = 'expired' ORDER BY id"
    ).fetchall()
    assert expired == [(20_007, None), (110_000, None)], "the first was published before it expired"


@pytest.mark.plan("relay/outbox_relay/operations/dead_letters.sql", "next_to_give_up")
@pytest.mark.parametrize("waiting", ["expired", "failed"])
def test_what_is_to_be_given_up_is_found_without_what_is_held(conn: Connection, waiting: str) -> None:
    values = {"waiting": waiting, **asdict(ALL), "in_doubt": False, "after": 0}
    types = {"waiting": "text", "topic": "text", "error": "text", "lane": "smallint", "older": "float8"}
    types |= {"in_doubt": "boolean", "after": "bigint"}
    watched = watch(conn, DEAD_LETTERS["next_to_give_up"], types, values)
    conn.execute(
        "UPDATE outbox.waiting SET reason = 'expired', parked = NULL, place = NULL WHERE id % 100 = 1"
        if waiting == "expired"
        else "UPDATE outbox.waiting SET reason = 'failed' WHERE id % 100 = 1"
    )
    assert rows_read(watched.explain(values), "waiting") == KEYS * EACH // 100


@pytest.mark.plan("relay/outbox_relay/operations/dead_letters.sql", "request_drain")
def test_a_request_reads_one_key(conn: Connection) -> None:
    watched = watch(conn, DEAD_LETTERS["request_drain"], {"numbers": "bigint[]"}, {"numbers": [1]})
    row = conn.execute("SELECT parked FROM outbox.waiting WHERE id = 502").fetchone()
    assert row is not None
    plan = watched.explain({"numbers": [row[0]]})
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") == 1


@pytest.mark.parametrize("analyzed", ["nothing", "the topic", "all"])
def test_groups_of_holds_read_what_waits_once(conn: Connection, analyzed: str) -> None:
    """Also where statistics are of a topic of which many messages wait, and thousands of keys have failed since."""
    conn.execute("RESET ALL")  # the session of a command, or of the figures
    conn.execute(
        "INSERT INTO outbox.parked_key (number, lane, topic, head, error) VALUES (-100001, 4, 'held', 100001, 'X')"
    )
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, parked, place) "
        "SELECT i, gen_random_uuid(), 'parked', -100001, i FROM generate_series(100001, 150000) i"
    )
    if analyzed == "the topic":
        conn.execute("ANALYZE outbox.waiting, outbox.parked_key")
    fill(conn)
    if analyzed == "all":
        conn.execute("ANALYZE outbox.waiting, outbox.parked_key")
    statement = read_statement("groups", keys="true", topics="true", lanes="true").as_string(conn)
    plan = Prepared(conn, statement, {}).explain({})
    assert rows_read(plan, "parked_key") <= 2 * (KEYS + 1)
    assert rows_read(plan, "waiting") <= KEYS * EACH + 50_000 + KEYS, "once; averages of loops are rounded"
    assert rows_read(plan, "message_p") == 0


def test_the_hold_of_one_message_is_read_by_its_number(conn: Connection) -> None:
    values = {**asdict(ALL), "most": 1, "number": 1}
    types = {"topic": "text", "error": "text", "lane": "smallint", "older": "float8", "most": "bigint"}
    statement = read_statement(keys=HOLDS["of_key"]).as_string(conn)
    watched = watch(conn, statement, types | {"number": "bigint"}, values)
    row = conn.execute("SELECT parked FROM outbox.waiting WHERE id = 502").fetchone()
    assert row is not None
    plan = watched.explain({**values, "number": row[0]})
    assert plan["Actual Rows"] == 1
    assert rows_read(plan, "parked_key") == 1
    assert rows_read(plan, "waiting") <= EACH + 1, "those behind it are counted"
