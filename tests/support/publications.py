"""Publication rows as the relay writes them, made by hand: for tests of those who only read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.plain_inserts import Connection

LANES = list(range(8))

RECORD = """
    INSERT INTO outbox.publication
        (epoch, batch, lo, hi, lanes, base, snapshot, after, is_partial, positions, partitions, offsets)
    SELECT %(epoch)s, %(batch)s, min(p), max(p), %(lanes)s::smallint[], %(base)s::pg_snapshot,
           %(snapshot)s::pg_snapshot, %(after)s, %(is_partial)s,
           array_agg(p ORDER BY p), array_agg(%(partition)s::integer),
           array_agg(%(offset)s + n - 1 ORDER BY p)
    FROM unnest(%(positions)s::bigint[]) WITH ORDINALITY u (p, n)
"""
OWN = """
    UPDATE outbox.lane
    SET owner = 'relay-1', epoch = %(epoch)s, joined = 0,
        system_identifier = (SELECT system_identifier FROM pg_control_system())
"""
LEASE = """
    INSERT INTO outbox.lease (epoch, owner, backend_pid, leased_until)
    VALUES (%(epoch)s, 'relay-1', pg_backend_pid(), clock_timestamp() + interval '1 minute')
    ON CONFLICT (epoch) DO UPDATE SET leased_until = EXCLUDED.leased_until
"""


def value(conn: Connection, statement: str, values: Any = None) -> Any:
    """The first column of the first row."""
    row = conn.execute(statement, values).fetchone()
    assert row is not None
    return row[0]


def snapshot(conn: Connection) -> str:
    """What is visible now."""
    return str(value(conn, "SELECT pg_current_snapshot()"))


def own_lanes(conn: Connection, epoch: int = 1) -> None:
    """Let a relay own all lanes, with no progress recorded."""
    conn.execute(OWN, {"epoch": epoch})
    conn.execute(LEASE, {"epoch": epoch})


def positions(conn: Connection, condition: str = "state = 'COMMITTED'") -> list[int]:
    """The positions of committed messages, in order."""
    found = conn.execute(
        f"SELECT position FROM outbox.message WHERE {condition} ORDER BY position"
    ).fetchall()
    return [row[0] for row in found]


def record(
    conn: Connection,
    published: Sequence[int],
    *,
    seen: str,
    batch: int,
    epoch: int = 1,
    base: str | None = None,
    after: int | None = None,
    partition: int = 0,
    offset: int = 0,
    lanes: Sequence[int] = LANES,
    is_partial: bool = False,
) -> None:
    """Write the row of one published batch; `seen` is the snapshot that it was read with."""
    conn.execute(
        RECORD,
        {
            "epoch": epoch,
            "batch": batch,
            "lanes": list(lanes),
            "base": base,
            "snapshot": seen,
            "after": after,
            "is_partial": is_partial,
            "partition": partition,
            "offset": offset,
            "positions": list(published),
        },
    )
