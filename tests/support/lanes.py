"""Lanes that a test takes in a relay's place, and who has which."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import psycopg

from outbox_relay.publisher import lease
from outbox_relay.publisher.lease import Lease, Taken
from outbox_relay.publisher.session import Session
from tests.support.waiting import wait_until

ALL = list(range(8))
LOW, HIGH = ALL[:4], ALL[4:]
OWNERS = (
    "SELECT array_agg(lane ORDER BY lane) FROM outbox.lane WHERE owner IS NOT NULL GROUP BY epoch ORDER BY 1"
)


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


def owned(conn: psycopg.Connection[Any]) -> list[list[int]]:
    """Which lanes the owners have, one list for each."""
    return [lanes for (lanes,) in conn.execute(OWNERS).fetchall()]


def wait_for_owners(conn: psycopg.Connection[Any], *expected: list[int]) -> None:
    """Wait until the owners have these lanes, one list for each."""
    wait_until(lambda: owned(conn) == list(expected), f"relays have these lanes each: {expected}")


def ask_to_drain(conn: psycopg.Connection[Any], session: Session, *, is_draining: bool = True) -> None:
    """Ask a relay to give its lanes to others, or no longer."""
    conn.execute("UPDATE outbox.lease SET is_draining = %s WHERE epoch = %s", [is_draining, session.epoch])
