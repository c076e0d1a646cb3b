"""The statements of exactly-once delivery on a real server: what the search of the core assumes of them, and plans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from outbox_relay.publisher.hands.proving import STATEMENTS
from outbox_relay.publisher.lease import STATEMENTS as LANES
from tests.support.locks import holding
from tests.support.much_held import EPOCH, session_of_a_relay
from tests.support.plain_inserts import Connection, connect, insert_numbered
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.query_plans import Prepared, rows_read

SHARD = "1/1"
TYPES = {
    "first": "smallint", "epoch": "bigint", "owner": "text", "shard": "text", "ended": "bigint[]", "number": "bigint",
    "digest": "text", "ids": "bigint[]", "positions": "bigint[]", "partitions": "integer[]",
}  # fmt: skip
NUMBERS = "SELECT batch, digest, ids FROM outbox.intent ORDER BY batch"
BEGIN = {
    "shard": SHARD,
    "name": "outbox-1",
    "lanes": "{0,1,2,3,4,5,6,7}",
    "digest": "",
}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A relay's session that owns all lanes, of a shard that has begun."""
    with session_of_a_relay(database) as conn:
        own_lanes(conn, EPOCH)
        conn.execute(STATEMENTS["begin"], BEGIN)
        yield conn


def batch(
    number: int, *ids: int, ended: tuple[int, ...] = (), epoch: int = EPOCH, digest: str = "x"
) -> dict[str, Any]:
    return {
        "first": 0, "epoch": epoch, "owner": "relay-1", "shard": SHARD, "ended": list(ended), "number": number,
        "digest": digest, "ids": list(ids), "positions": list(ids), "partitions": [0] * len(ids),
    }  # fmt: skip


def intend(conn: Connection, *args: Any, **more: Any) -> int:
    return conn.execute(STATEMENTS["intend"], batch(*args, **more)).rowcount


def test_an_intent_takes_the_place_of_one_with_its_number_and_ends_others(conn: Connection) -> None:
    assert intend(conn, 1, 10, 11) == 1
    assert intend(conn, 2, 12, ended=(0,)) == 1
    assert intend(conn, 2, 11, digest="y") == 1
    assert conn.execute(NUMBERS).fetchall() == [(1, "x", [10, 11]), (2, "y", [11])]


def test_a_former_owner_writes_and_ends_no_intent(conn: Connection) -> None:
    assert intend(conn, 1, 10, ended=(0,), epoch=EPOCH - 1) == 0
    assert conn.execute(NUMBERS).fetchall() == [(0, "", [])]


def test_no_intent_is_written_while_somebody_takes_the_lanes(conn: Connection, database: str) -> None:
    with holding(database, "SELECT FROM outbox.lane WHERE lane = 0 FOR UPDATE"):
        assert intend(conn, 1, 10) == 0
    assert intend(conn, 1, 10) == 1


def test_lanes_cannot_be_taken_while_an_intent_is_written(conn: Connection, database: str) -> None:
    values = {"lanes": "{0,1,2,3,4,5,6,7}"}
    conn.execute("DELETE FROM outbox.lease")
    with connect(database) as taker, conn.transaction():
        assert intend(conn, 1, 10) == 1
        with taker.transaction():
            assert (0,) not in taker.execute(LANES["lock_free"], values).fetchall()


def test_what_is_unrecorded_is_of_batches_up_to_the_offset_and_has_no_publication(conn: Connection) -> None:
    insert_numbered(conn, "t", 6)
    found = positions(conn)
    record(conn, found[:2], epoch=EPOCH, batch=1, seen=snapshot(conn))
    intend(conn, 1, *found[:3])
    intend(conn, 2, found[3])
    intend(conn, 3, found[4])
    rows = conn.execute(STATEMENTS["unrecorded"], {"shard": SHARD, "batch": 2}).fetchall()
    assert [row[0] for row in rows] == found[2:4]
    conn.execute("UPDATE outbox.intent SET ids = ARRAY[999999]::bigint[] WHERE batch = 2")
    rows = conn.execute(STATEMENTS["unrecorded"], {"shard": SHARD, "batch": 2}).fetchall()
    assert [row[0] for row in rows] == found[2:3], "history that was dropped had its publications"
    conn.execute(STATEMENTS["end_intents"], {"shard": SHARD, "batch": 2})
    assert conn.execute(NUMBERS).fetchall() == [(2, "x", [999999])]


def test_a_shard_that_is_left_begins_again_under_another_name(conn: Connection) -> None:
    values = {"lanes": "{7}"}
    intend(conn, 1, 10)
    conn.execute(STATEMENTS["forget"], {"shard": SHARD})
    assert conn.execute(NUMBERS).fetchall() == []
    assert conn.execute(STATEMENTS["known"], values).fetchall() == []
    assert conn.execute(STATEMENTS["was_exactly_once"], values).fetchone() == (True,)
    conn.execute(STATEMENTS["begin"], BEGIN | {"name": "outbox-2"})
    assert conn.execute(STATEMENTS["known"], values).fetchall() == [(SHARD, "outbox-2")]
    assert conn.execute(STATEMENTS["intents"], {"shard": SHARD}).fetchall() == [(0, "")]


@pytest.mark.plan("relay/outbox_relay/publisher/hands/batches.sql", "intend")
def test_an_intent_reads_one_lane_and_the_intents_that_it_ends(conn: Connection) -> None:
    prepared = Prepared(conn, STATEMENTS["intend"], TYPES)
    with conn.transaction(force_rollback=True):
        prepared.explain(batch(1, 10))
    for number in range(1, 500):
        intend(conn, number, number)
    plan = prepared.explain(batch(600, 10, ended=(7, 8)))
    assert rows_read(plan, "intent") <= 2
    assert rows_read(plan, "lane") <= 8


@pytest.mark.plan("relay/outbox_relay/publisher/hands/batches.sql", "unrecorded")
def test_each_message_of_a_batch_is_looked_up_among_publications(conn: Connection) -> None:
    insert_numbered(conn, "t", 2_000)
    found = positions(conn)
    types, values = {"shard": "text", "batch": "bigint"}, {"shard": SHARD, "batch": 1}
    prepared = Prepared(conn, STATEMENTS["unrecorded"], types)
    prepared.explain(values)
    for number in range(0, 1_900, 10):
        record(conn, found[number : number + 10], epoch=EPOCH, batch=number, seen=snapshot(conn))
    intend(conn, 1, *found[1_890:1_920])
    plan = prepared.explain(values)
    assert plan["Actual Rows"] == 20
    assert rows_read(plan, "publication") <= 60, "one or two for each of them"
