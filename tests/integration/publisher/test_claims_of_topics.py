"""What becomes of the row of a message that waits already and is claimed: by the statements themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher.hands.writes import STATEMENTS
from tests.support.plain_inserts import Connection, connect
from tests.support.publications import own_lanes, record, snapshot

EPOCH, LANE, ID, KEY, TOPIC = 7, 4, 101, 101, -101
OWN = {"epoch": EPOCH, "owner": "relay-1", "mine": f"{{{LANE}}}"}
BEGIN = {
    "numbers": [KEY], "lanes": [LANE], "topics": ["t"], "parts": [None], "partitions": [None], "selectors": [None],
    "queues": [None], "order_keys": [b"k"],
    "heads": [ID], "errors": ["INVALID_RECORD: why"],
}  # fmt: skip
ROW = "SELECT reason, parked, place, in_doubt FROM outbox.waiting"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        own_lanes(conn, EPOCH)
        yield conn


def claim(conn: Connection, reason: str, number: int | None, *, in_doubt: bool = False, id_: int = ID) -> int:
    """Claim one message; return how many rows are written."""
    values = {
        "ids": [id_], "message_ids": ["0" * 32], "reasons": [reason], "numbers": [number], "places": [id_],
        "doubtful": [in_doubt],
    }  # fmt: skip
    return conn.execute(STATEMENTS["claim"], values).rowcount


def wait(conn: Connection, *row: Any) -> None:
    """Let the message wait: its reason, hold, place and doubt."""
    conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason, parked, place, in_doubt, due_at) "
        "VALUES (%s, gen_random_uuid(), %s, %s, %s, %s, now())",
        [ID, *row],
    )


@pytest.mark.parametrize(("before", "now"), [(False, False), (True, False), (False, True)])
def test_a_message_takes_its_doubt_from_its_topic_to_its_key(
    conn: Connection, *, before: bool, now: bool
) -> None:
    with conn.transaction(force_rollback=True):  # its hold's row is not of this test
        wait(conn, "parked", TOPIC, ID, before)
        conn.execute(STATEMENTS["begin_holds"], BEGIN)
        assert claim(conn, "failed", KEY, in_doubt=now) == 1
        assert conn.execute(ROW).fetchall() == [("failed", KEY, ID, before or now)]


def test_a_message_that_expires_while_it_waits_waits_for_no_hold(conn: Connection) -> None:
    with conn.transaction(force_rollback=True):
        wait(conn, "parked", TOPIC, ID, True)
        assert claim(conn, "expired", None) == 1
        assert conn.execute(ROW).fetchall() == [("expired", None, None, True)]


def test_a_message_that_expired_once_published_is_not_claimed(conn: Connection) -> None:
    record(conn, [ID], seen=snapshot(conn), batch=3)
    assert claim(conn, "expired", None, in_doubt=True) == 0
    assert conn.execute(ROW).fetchall() == []
    assert claim(conn, "expired", None, in_doubt=True, id_=ID + 1) == 1, "that one has no publication"


def test_no_message_is_claimed_for_a_hold_that_has_no_row(conn: Connection) -> None:
    with pytest.raises(psycopg.errors.ForeignKeyViolation, match=f"parked key {KEY}: it has no row"):
        claim(conn, "held", KEY, id_=ID + 1)
    assert conn.execute(ROW).fetchall() == []
    conn.execute(STATEMENTS["begin_holds"], BEGIN)
    assert claim(conn, "failed", KEY) == 1
    assert claim(conn, "held", KEY, id_=ID + 1) == 1


def test_a_relay_that_lost_a_lane_claims_nothing(conn: Connection) -> None:
    assert conn.execute(STATEMENTS["own"], OWN).fetchone() == (1,)
    another = {**OWN, "epoch": EPOCH - 1}
    assert conn.execute(STATEMENTS["own"], another).fetchone() == (0,), (
        "another relay may have let the hold go"
    )
