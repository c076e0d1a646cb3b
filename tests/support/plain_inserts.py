"""Short ways for tests to write messages by plain INSERT, and to wait until the relay is done with them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from outbox import sessions
from tests.support.waiting import wait_until

Connection = psycopg.Connection[Any]

PENDING = """
    SELECT m.message_id::text FROM outbox.message_status m
    WHERE m.status = 'COMMITTED' AND m.waiting IS NULL ORDER BY m.position LIMIT 5
"""
LANE = "SELECT stopped_error FROM outbox.lane WHERE stopped_error IS NOT NULL ORDER BY lane"


def connect(dsn: str) -> Connection:
    """Connect in autocommit."""
    return psycopg.connect(dsn, autocommit=True)


def connect_as_service(dsn: str) -> Connection:
    """Connect in autocommit with the settings of the product's own sessions, for statements that it runs in them."""
    return sessions.connect(dsn)


def clock(conn: Connection) -> datetime:
    """What time it is in PostgreSQL."""
    row = conn.execute("SELECT clock_timestamp()").fetchone()
    assert row is not None
    now: datetime = row[0]
    return now


def insert(
    conn: Connection, topic: str, key: str | bytes | None, body: str | bytes | None, **columns: Any
) -> str:
    """Write one message as any language would; answer its message id."""
    values: dict[str, Any] = {"topic": topic, "key": _bytes(key), "body": _bytes(body), **columns}
    names = list(values)
    statement = sql.SQL("INSERT INTO outbox.message ({}) VALUES ({}) RETURNING message_id::text").format(
        sql.SQL(", ").join(map(sql.Identifier, names)), sql.SQL(", ").join(map(sql.Placeholder, names))
    )
    row = conn.execute(statement, values).fetchone()
    assert row is not None
    return str(row[0])


def insert_unchecked(
    conn: Connection, topic: str, key: str | bytes | None, body: str | bytes | None, **columns: Any
) -> str:
    """Write a row that states its lane, without any check of the table."""
    with conn.transaction():
        conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER USER")
        message_id = insert(conn, topic, key, body, **columns)
        conn.execute("ALTER TABLE outbox.message ENABLE TRIGGER USER")
    return message_id


def insert_numbered(conn: Connection, topic: str, count: int, *, keys: int = 50, start: int = 0) -> None:
    """Write `count` messages in one transaction; bodies are `key:version` as `tests.support.kafka_records` reads
    them.
    """
    conn.execute(
        """
        INSERT INTO outbox.message (topic, key, body)
        SELECT %(topic)s, convert_to('k' || i %% %(keys)s, 'UTF8'),
               convert_to(pg_catalog.format('k%%s:%%s', i %% %(keys)s, i), 'UTF8')
        FROM generate_series(%(start)s::bigint, %(start)s::bigint + %(count)s - 1) i
        """,
        {"topic": topic, "keys": keys, "start": start, "count": count},
    )


def numbered(count: int, *, keys: int = 50, start: int = 0) -> list[tuple[str, int]]:
    """Name the (key, version) pairs that `insert_numbered` writes."""
    return [(f"k{i % keys}", i) for i in range(start, start + count)]


def decide(conn: Connection, message_id: str, state: str) -> int:
    """Decide a half message by the documented statement; answer the number of rows."""
    return conn.execute(
        "UPDATE outbox.message SET state = %s WHERE message_id = %s AND state = 'UNKNOWN'",
        [state, message_id],
    ).rowcount


def wait_published(conn: Connection, *, seconds: float = 60.0) -> None:
    """Wait until every committed message that does not wait for something has a publication."""
    wait_until(lambda: conn.execute(PENDING).fetchone() is None, "everything is published", seconds=seconds)


def fall_due(conn: Connection, *message_ids: str, seconds: float = 0.0) -> datetime:
    """Let delayed messages be due so many seconds from now, when a test is ready for it; return that time."""
    row = conn.execute(
        """
        WITH due AS MATERIALIZED (SELECT clock_timestamp() + pg_catalog.make_interval(secs => %s) AS at), changed AS (
            UPDATE outbox.waiting w SET due_at = due.at FROM due, outbox.message m
            WHERE w.id = m.id AND m.message_id = ANY (%s::uuid[]) RETURNING w.id
        )
        SELECT at, (SELECT count(*) FROM changed) FROM due
        """,
        [seconds, list(message_ids)],
    ).fetchone()
    assert row is not None
    assert row[1] == len(message_ids), "a message does not wait any more"
    due: datetime = row[0]
    return due


def stopped(conn: Connection) -> list[str]:
    """The errors of the lanes that are stopped."""
    return [row[0] for row in conn.execute(LANE).fetchall()]


def keys_of_lanes(conn: Connection, topic: str, *lanes: int) -> list[str]:
    """Find one key for each of these lanes, as the table's trigger assigns them."""
    rows = conn.execute(
        """
        SELECT DISTINCT ON (1)
            outbox.lane_of(%s, NULL, convert_to('k' || i, 'UTF8'), 0), 'k' || i
        FROM generate_series(0, 499) i ORDER BY 1, i
        """,
        [topic],
    ).fetchall()
    found = dict(rows)
    return [found[lane] for lane in lanes]


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
