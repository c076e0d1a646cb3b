"""Lanes that a test takes in a relay's place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from outbox_relay.publisher import lease
from outbox_relay.publisher.lease import Lease, Taken

ALL = range(8)


class LanesHeldError(AssertionError):
    """A living relay holds some of the lanes."""


def join_and_take(
    conn: psycopg.Connection[Any], owner: str, seconds: float, lanes: Iterable[int] = ALL
) -> tuple[Lease, Taken]:
    """Join under a new epoch and take these lanes, all of them or none."""
    wanted = frozenset(lanes)
    # Each in a transaction of its own, as a relay does: a row of a savepoint does not have the xid of its transaction.
    held = lease.join(conn, owner, seconds)
    taken = held.take(conn, wanted)
    if held.lanes != wanted:
        held.release(conn, {})
        raise LanesHeldError(f"{sorted(wanted - held.lanes)} are held")
    return held, taken


def take(conn: psycopg.Connection[Any], owner: str, seconds: float, lanes: Iterable[int] = ALL) -> Lease:
    """The same; return the lease only."""
    return join_and_take(conn, owner, seconds, lanes)[0]
