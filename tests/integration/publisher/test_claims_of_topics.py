"""What becomes of the row of a message that waits already and is claimed: by the statements themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher.parked import Claim, Head
from outbox_relay.publisher.recorder import STATEMENTS
from outbox_relay.publisher.withheld import claim_values
from tests.support.plain_inserts import Connection, connect
from tests.support.publications import own_lanes, record, snapshot

EPOCH, LANE, ID, KEY, OTHER, TOPIC = 7, 4, 101, 101, 51, -101
FAILS = Claim(LANE, ID, ID, "0" * 32, KEY, Head((LANE, "t", None, b"k"), b"k", "INVALID_RECORD: why"))
EXPIRED = Claim(LANE, ID, ID, "0" * 32, None, None)
OWN = {"epoch": EPOCH, "owner": "relay-1", "mine": f"{{{LANE}}}"}
PUBLICATION = {
    "batch": 9, "lo": 3, "hi": 3, "lanes": f"{{{LANE}}}", "base": None, "snapshot": "1:1:", "after": None,
    "is_partial": True, "positions": "{3}", "partitions": "{0}", "offsets": "{5}",
}  # fmt: skip
DRAINED = {"number": TOPIC, "done": "{}", "is_whole": True, "head": None, "error": None, "in_doubt": False}
ROW = "SELECT reason, parked, place, in_doubt FROM outbox.waiting"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        own_lanes(conn, EPOCH)
        yield conn


def claimed(
    conn: Connection, name: str, claim: Claim, row: tuple[Any, ...] | None, *, in_doubt: bool
) -> tuple[Any, ...] | None:
    """Claim a message that has a row by one of the two statements; return what its row says then."""
    values = {**OWN, **PUBLICATION, **claim_values([claim], {ID: in_doubt})}
    with conn.transaction(force_rollback=True):
        if row is not None:
            conn.execute(
                "INSERT INTO outbox.waiting (id, message_id, reason, parked, place, in_doubt, due_at) "
                "VALUES (%s, gen_random_uuid(), %s, %s, %s, %s, now())",
                [ID, *row],
            )
        assert conn.execute(STATEMENTS[name], values).rowcount == 1
        found = conn.execute(ROW).fetchone()
        if row is not None and claim is EXPIRED:
            conn.execute(STATEMENTS["drained"], {**OWN, **DRAINED, "expired": f"{{{ID}}}"})
            assert conn.execute(ROW).fetchone() == ("expired", None, None, row[3]), "by the topic's drain"
        return found


@pytest.mark.parametrize("name", ["claim", "record_claims"])
def test_a_message_takes_its_doubt_from_its_topic_to_its_key(conn: Connection, name: str) -> None:
    for before, now in ((False, False), (True, False), (False, True)):
        row = ("parked", TOPIC, ID, before)
        assert claimed(conn, name, FAILS, row, in_doubt=now) == ("failed", KEY, ID, before or now)


@pytest.mark.parametrize("name", ["claim", "record_claims"])
def test_a_claim_moves_nothing_but_from_a_topic(conn: Connection, name: str) -> None:
    for row in (("held", OTHER, ID, True), ("failed", OTHER, ID, False), ("delayed", None, None, False)):
        assert claimed(conn, name, FAILS, row, in_doubt=False) == row


@pytest.mark.parametrize("name", ["claim", "record_claims"])
def test_one_that_expired_once_published_stays_with_its_topic_until_the_drain(
    conn: Connection, name: str
) -> None:
    record(conn, [ID], seen=snapshot(conn), batch=3)
    assert claimed(conn, name, EXPIRED, None, in_doubt=True) is None, "it is published"
    row = ("parked", TOPIC, ID, True)
    assert claimed(conn, name, EXPIRED, row, in_doubt=True) == row


@pytest.mark.parametrize("name", ["claim", "record_claims"])
def test_no_message_is_claimed_for_a_key_that_is_not_parked(conn: Connection, name: str) -> None:
    held = Claim(LANE, ID + 1, ID + 1, "1" * 32, KEY, None)

    def claim(*claims: Claim, **changed: Any) -> int:
        doubtful = {one.id: False for one in claims}
        return conn.execute(
            STATEMENTS[name], {**OWN, **PUBLICATION, **claim_values(claims, doubtful), **changed}
        ).rowcount

    with pytest.raises(psycopg.errors.ForeignKeyViolation, match=f"parked key {KEY}: it has no row"):
        claim(held)
    assert conn.execute(ROW).fetchall() == []
    assert conn.execute("SELECT FROM outbox.publication").fetchall() == []
    assert claim(held, epoch=EPOCH - 1) == 0, "another relay may have drained the key"
    assert claim(FAILS, held, batch=10) == 1
    assert claim(held._replace(id=ID + 2, position=ID + 2), batch=11) == 1
