"""Lanes stopped as a relay leaves them, and messages set aside, by hand: for tests of those who come afterwards."""

from __future__ import annotations

from typing import Any

from psycopg import Connection

ERROR = "QUEUE_OUT_OF_RANGE: queue 99 does not exist"
STOP = """
    UPDATE outbox.lane l
    SET stopped_error = %s, stopped_message = m.message_id, stopped_at = clock_timestamp(), retrying_at = NULL,
        stopped_in_doubt = %s
    FROM outbox.message m WHERE m.id = %s AND l.lane = m.lane RETURNING l.lane
"""
GO_ON = """
    UPDATE outbox.lane
    SET stopped_error = NULL, stopped_message = NULL, stopped_at = NULL, retrying_at = NULL, retry_requested_at = NULL,
        stopped_in_doubt = false
    WHERE lane = %(lane)s
"""
FORGET = """
    UPDATE outbox.publication b SET positions = array_replace(b.positions, m.position, -m.position)
    FROM outbox.message m WHERE m.id = %s AND b.positions @> ARRAY[m.position]
"""
KILL = "UPDATE outbox.message SET state = 'DEAD', remark = %(error)s WHERE id = %(id)s"


def stop_lane(conn: Connection[Any], id_: int, error: str = ERROR, *, in_doubt: bool = False) -> int:
    """Stop a message's lane at it; return the lane."""
    row = conn.execute(STOP, [error, in_doubt, id_]).fetchone()
    assert row is not None, f"there is no message {id_}"
    return int(row[0])


def go_on(conn: Connection[Any], lane: int) -> None:
    """Let a stopped lane go on."""
    conn.execute(GO_ON, {"lane": lane})


def set_aside(conn: Connection[Any], *ids: int) -> None:
    """Make messages DEAD, each at the stop of its lane, and let the lanes go on; their publications are forgotten."""
    for id_ in ids:
        conn.execute(FORGET, [id_])
        lane = stop_lane(conn, id_)
        conn.execute(KILL, {"id": id_, "error": ERROR})
        go_on(conn, lane)
