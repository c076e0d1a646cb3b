"""How far each lane is published, as seen from outside the relay."""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.publisher.lease import read_progress
from outbox_relay.publisher.snapshot import Progress

STATEMENTS = Statements("outbox_relay/operations/status.sql")
LANES = Statements("outbox_relay/publisher/lanes.sql")


def read(conn: psycopg.Connection[Any]) -> dict[int, Progress]:
    """Read the recorded progress of every lane; START where none is known, or another cluster's."""
    (cluster,) = conn.execute(STATEMENTS["cluster"]).fetchone() or (None,)
    rows = conn.execute(LANES["progress"], {"system_identifier": cluster}).fetchall()
    return {lane: read_progress(*rest) for lane, *rest in rows}
