"""Which messages are in doubt for the next owner of the lanes, by how the last one left them."""

from __future__ import annotations

import pytest
from psycopg.errors import CheckViolation

from tests.support.lanes import join_and_take, take
from tests.support.locks import holding
from tests.support.plain_inserts import Connection, insert, keys_of_lanes
from tests.support.stopped_lanes import stop_lane

LANE, OTHER = 5, 6
DIE = "UPDATE outbox.lease SET leased_until = '-infinity'"
HOLD = f"SELECT FROM outbox.lane WHERE lane = {LANE} FOR UPDATE"


def one(conn: Connection, statement: str) -> int:
    row = conn.execute(statement.encode()).fetchone()
    assert row is not None
    return int(row[0])


def newest(conn: Connection) -> int:
    """Write a message; return its position, the newest."""
    insert(conn, "t", "k", b"x")
    return one(conn, "SELECT max(position) FROM outbox.message")


def taken(conn: Connection) -> dict[int, int]:
    """Take the lanes as the next relay does; return up to where each is in doubt, as its row says."""
    _, held = join_and_take(conn, "next", 60)
    rows = conn.execute("SELECT lane, doubted_until FROM outbox.lane").fetchall()
    assert dict(rows) == held.doubted
    return held.doubted


def stopped(conn: Connection, *, in_doubt: bool = False) -> str:
    """Stop the lane at a message that is behind all others, and return it."""
    (key,) = keys_of_lanes(conn, "t", LANE)
    message_id = insert(conn, "t", key, b"x")
    stop_lane(conn, one(conn, "SELECT max(id) FROM outbox.message"), in_doubt=in_doubt)
    return message_id


def test_what_was_sent_before_the_first_relay_is_not_in_doubt(conn: Connection) -> None:
    newest(conn)
    assert set(taken(conn).values()) == {0}


def test_lanes_that_were_given_back_keep_what_was_noted(conn: Connection) -> None:
    held = take(conn, "first", 60)
    newest(conn)
    held.release(conn, {LANE: 7})
    newest(conn)
    assert taken(conn) == {lane: 7 if lane == LANE else 0 for lane in range(8)}


def test_of_a_relay_that_died_everything_is_in_doubt(conn: Connection) -> None:
    take(conn, "first", 60)
    last = newest(conn)
    conn.execute(DIE)
    assert set(taken(conn).values()) == {last}
    # The next one died, too.
    last = newest(conn)
    conn.execute(DIE)
    assert set(taken(conn).values()) == {last}


def test_a_lane_that_was_stopped_when_the_relay_died_is_as_its_row_says(conn: Connection) -> None:
    take(conn, "first", 60)
    stopped(conn)
    last = newest(conn)
    conn.execute(DIE)
    doubted = taken(conn)
    assert (doubted[LANE], doubted[OTHER]) == (0, last)


def test_a_stop_in_doubt_stays_in_doubt(conn: Connection) -> None:
    take(conn, "first", 60)
    stopped(conn, in_doubt=True)
    conn.execute("UPDATE outbox.lane SET doubted_until = 3 WHERE lane = %s", [LANE])
    conn.execute(DIE)
    assert taken(conn)[LANE] == 3


def test_a_lane_that_was_being_retried_when_the_relay_died_is_in_doubt(conn: Connection) -> None:
    take(conn, "first", 60)
    stopped(conn)
    conn.execute("UPDATE outbox.lane SET retrying_at = now() WHERE lane = %s", [LANE])
    last = newest(conn)
    conn.execute(DIE)
    assert taken(conn)[LANE] == last


@pytest.mark.parametrize(("noted", "is_given_back"), [({}, True), ({OTHER: 7}, True), ({LANE: 7}, False)])
def test_a_held_row_is_given_back_only_if_nothing_was_to_be_written(
    conn: Connection, database: str, noted: dict[int, int], is_given_back: bool
) -> None:
    held = take(conn, "first", 60)
    last = newest(conn)
    with holding(database, HOLD):
        held.release(conn, noted)
    doubted = taken(conn)
    expected = {lane: noted.get(lane, 0) for lane in range(8)}
    assert doubted == (expected if is_given_back else expected | {LANE: last})


@pytest.mark.parametrize("column", ["system_identifier", "timeline"])
def test_lanes_that_were_given_back_on_another_server_are_in_doubt(conn: Connection, column: str) -> None:
    """A promoted standby, or a restored backup: what was published since is not known there."""
    held = take(conn, "first", 60)
    message_id = stopped(conn)
    last = newest(conn)
    held.release(conn)
    conn.execute(f"UPDATE outbox.lane SET {column} = {column} + 1".encode())
    if column == "timeline":
        with pytest.raises(CheckViolation, match="has ended, and has not recorded"):
            conn.execute("UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [message_id])
    assert set(taken(conn).values()) == {last}


def test_only_a_stopped_lane_is_stopped_in_doubt(conn: Connection) -> None:
    with pytest.raises(CheckViolation, match="lane_in_doubt_is_stopped"):
        conn.execute("UPDATE outbox.lane SET stopped_in_doubt = true")
