"""Plans of statements about holds: prepared while nothing is held, in a relay's session, and executed when much is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from outbox_relay.publisher.finder import prepare_session
from tests.support.plain_inserts import Connection, connect
from tests.support.publications import own_lanes
from tests.support.query_plans import Prepared

KEYS, EACH, EPOCH = 2_000, 5, 7
_FILL = """
    WITH keys AS (
        INSERT INTO outbox.parked_key (number, lane, topic, order_key, head, error)
        SELECT i * %(each)s, i %% 8, 't', convert_to('k' || i, 'UTF8'), i * %(each)s, 'X'
        FROM generate_series(1, %(keys)s) i RETURNING number
    )
    INSERT INTO outbox.waiting (id, message_id, reason, parked, place)
    SELECT k.number + j, gen_random_uuid(), 'held', k.number, k.number + j
    FROM keys k, generate_series(0, %(each)s - 1) j
"""


@contextmanager
def session_of_a_relay(database: str) -> Iterator[Connection]:
    """Connect as a relay does; statistics stay as they are."""
    with connect(database) as conn:
        for table in ("waiting", "parked_key", "lane"):
            conn.execute(f"ALTER TABLE outbox.{table} SET (autovacuum_enabled = false)")
        prepare_session(conn)
        yield conn


def fill(conn: Connection) -> None:
    """Hold so many keys, with so many messages each."""
    conn.execute(_FILL, {"keys": KEYS, "each": EACH})


def watch(conn: Connection, statement: str, types: dict[str, str], values: dict[str, Any]) -> Prepared:
    """Prepare a statement while nothing is held, then hold much."""
    own_lanes(conn, EPOCH)
    prepared = Prepared(conn, statement, types)
    with conn.transaction(force_rollback=True):
        prepared.explain(values)
    fill(conn)
    return prepared
