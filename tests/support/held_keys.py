"""Keys, partitions and topics held as a relay holds them, by hand: for tests of those who come afterwards."""

from __future__ import annotations

from psycopg import Connection

from tests.support.plain_inserts import insert

HOLD = """
    WITH parked AS (
        INSERT INTO outbox.parked_key (number, lane, topic, order_key, head, error, since)
        SELECT m.id, m.lane, m.topic, m.key, m.id, %(error)s, clock_timestamp() - make_interval(secs => %(age)s)
        FROM outbox.message m WHERE m.id = %(head)s
        RETURNING number
    )
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place)
    SELECT m.id, m.message_id, CASE m.id WHEN %(head)s THEN 'failed' ELSE 'held' END, p.number, m.position
    FROM outbox.message m, outbox.message h, parked p
    WHERE h.id = %(head)s AND m.id >= h.id AND (m.topic, m.key) = (h.topic, h.key)
"""
HOLD_TOPIC = """
    WITH waiting AS (
        SELECT m.id, m.message_id, m.lane, m.position, -min(m.id) OVER (PARTITION BY m.lane) AS number
        FROM outbox.message m WHERE m.topic = %(topic)s
    ), parked AS (
        INSERT INTO outbox.parked_key (number, lane, topic, head, error)
        SELECT DISTINCT w.number, w.lane, %(topic)s, -w.number, %(error)s FROM waiting w
    )
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place)
    SELECT w.id, w.message_id, 'parked', w.number, w.position FROM waiting w
"""
HOLD_PARTITION = """
    WITH waiting AS (
        SELECT m.id, m.message_id, m.lane, m.position,
               (1::bigint << 60) + min(m.id) OVER (PARTITION BY m.lane) AS number
        FROM outbox.message m WHERE m.topic = %(topic)s
    ), parked AS (
        INSERT INTO outbox.parked_key (number, lane, topic, partition, partitions, head, error)
        SELECT w.number, w.lane, %(topic)s, %(partition)s, 4, min(w.id), %(error)s
        FROM waiting w GROUP BY w.number, w.lane
    )
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place)
    SELECT w.id, w.message_id, 'parked', w.number, w.position FROM waiting w
"""


def hold_key(conn: Connection, head: int, error: str = "MESSAGE_TOO_LARGE: much", age: float = 0.0) -> None:
    """Let a message fail since `age` seconds, and hold the later ones of its key."""
    conn.execute(HOLD, {"head": head, "error": error, "age": age})


def hold_topic(conn: Connection, topic: str, error: str) -> None:
    """Let all messages of a topic wait, in each of their lanes."""
    conn.execute(HOLD_TOPIC, {"topic": topic, "error": error})


def hold_partition(conn: Connection, topic: str, partition: int, error: str) -> None:
    """Let all messages of a topic wait for a partition, in each of their lanes."""
    conn.execute(HOLD_PARTITION, {"topic": topic, "partition": partition, "error": error})


def write_key(conn: Connection, topic: str, key: str, count: int = 2) -> int:
    """Write messages of a key; return the id of the first."""
    ids = [insert(conn, topic, key, str(number)) for number in range(count)]
    row = conn.execute("SELECT id FROM outbox.message WHERE message_id = %s", [ids[0]]).fetchone()
    assert row is not None
    return int(row[0])
