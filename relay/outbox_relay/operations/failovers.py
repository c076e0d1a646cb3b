"""Reads which servers took over from another one, as relays noticed it, and what a scan after that found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
from psycopg.rows import class_row

from outbox.statements import Statements

STATEMENTS = Statements("outbox_relay/operations/failovers.sql")


@dataclass(frozen=True)
class Failover:
    """A server that took over; `lost` is what the last scan found."""

    system_identifier: int
    timeline: int
    from_system_identifier: int
    from_timeline: int
    noticed_at: datetime
    scanned_at: datetime | None
    lost: int | None


def everything(conn: psycopg.Connection[Any]) -> list[Failover]:
    """Return all servers that took over, the newest first; needs no more than the role outbox_reader."""
    with conn.cursor(row_factory=class_row(Failover)) as cursor:
        return cursor.execute(STATEMENTS["all"]).fetchall()


def scan_from(conn: psycopg.Connection[Any], failover: Failover, margin: timedelta) -> datetime | None:
    """Return the time from which records may be lost; None: no publication of the server before is here."""
    values = {"noticed_at": failover.noticed_at}
    (last,) = conn.execute(STATEMENTS["last_published_before"], values).fetchone() or (None,)
    return None if last is None else last - margin


def note(conn: psycopg.Connection[Any], failover: Failover, lost: int) -> None:
    """State how many messages a scan found; needs the role outbox_operator."""
    values = {
        "system_identifier": failover.system_identifier,
        "timeline": failover.timeline,
        "lost": lost,
    }
    conn.execute(STATEMENTS["scanned"], values)
