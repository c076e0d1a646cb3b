"""What fails, by hand: something for each act of the console, and all that acts change."""

from __future__ import annotations

from tests.support.console_pages import dead_letter
from tests.support.held_keys import hold_key, write_key
from tests.support.plain_inserts import Connection, insert
from tests.support.publications import own_lanes, value

STATE = """
    SELECT (SELECT array_agg(row(m.id, m.state, m.remark) ORDER BY m.id)::text FROM outbox.message m),
        (SELECT array_agg(row(p.id, p.state, p.attempts) ORDER BY p.id)::text FROM outbox.inbox_parked p),
        (SELECT array_agg(row(k.number, k.requested_at) ORDER BY k.number)::text FROM outbox.parked_key k),
        (SELECT array_agg(row(t.name, t.paused_at))::text FROM outbox.topic t),
        (SELECT array_agg(row(c.id, c.due_at) ORDER BY c.id)::text FROM outbox.pending_check c),
        (SELECT count(*) FROM outbox.consumer_pause WHERE resumed_at IS NULL), (SELECT count(*) FROM outbox.event)
"""


def half_message(conn: Connection) -> int:
    """Write a half message that nobody has decided; return its id."""
    insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="pay")
    return int(value(conn, "SELECT max(id) FROM outbox.message"))


def register(conn: Connection) -> None:
    """Register the topic of the tests."""
    conn.execute(
        "INSERT INTO outbox.topic (name, partitions, message_type, max_message_bytes) "
        "VALUES ('orders', 4, 'MIXED', 1000000) ON CONFLICT DO NOTHING"
    )


def links(conn: Connection) -> dict[str, str]:
    """Make something that each act can be done with; return the paths to their forms."""
    own_lanes(conn)
    register(conn)
    held = []
    for key in ("a", "b", "c"):
        held.append(write_key(conn, "orders", key))
        hold_key(conn, held[-1])
    insert(conn, "orders", "later", "b", deliver_at="2099-01-01T00:00Z")
    later = int(value(conn, "SELECT max(id) FROM outbox.message"))
    halves = [half_message(conn) for _ in range(3)]
    letters = [dead_letter(conn, "ValueError at m:f: no", key=key) for key in ("a", "b")]
    return {
        "redrive": f"ids={letters[0]}",
        "discard": f"ids={letters[1]}",
        "release": f"id={held[0]}",
        "skip": f"id={held[1]}",
        "set-aside": f"id={held[2]}",
        "cancel": f"id={later}",
        "commit": f"id={halves[0]}",
        "rollback": f"id={halves[1]}",
        "check": f"id={halves[2]}",
        "pause-topic": "topic=orders",
        "resume-topic": "topic=orders",
        "pause-group": "group=points",
        "resume-group": "group=points",
    }


def state(conn: Connection) -> object:
    """All that acts change."""
    return conn.execute(STATE).fetchone()
