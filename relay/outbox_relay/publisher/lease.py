"""The lease: one relay owns the lanes, under an epoch, for as long as it renews in the database's time.

What happens when the owner dies or pauses, between any two lines: its rows in outbox.lane stay as they are until
the lease runs out (or its database session is gone), then another relay takes the lanes under a higher epoch
and starts from the progress that was recorded. A paused owner that wakes up finds another epoch at its next
barrier (or renewal), before it publishes anything further; what it had already given to Kafka is at worst
published twice, with the same message ids, and after the first appearance: each owner publishes a gap-free run, in
order, that starts at or before the recorded progress.

A process that dies or freezes while it takes the lanes holds their row locks only until its session ends: at once, or
after a lease in an idle transaction. Until then a taker waits, and logs for whom.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg

from outbox.statements import Statements
from outbox_relay.logs import Log
from outbox_relay.publisher.snapshot import START, Progress, Snapshot

STATEMENTS = Statements("outbox_relay/publisher/lanes.sql")
LANES = 8
LOCK_WAIT_S = 1.0
"""Taking lanes waits so long for their locks before it looks who holds them, and tries again."""

log = Log("lanes")


class LeaseLostError(RuntimeError):
    """Another relay owns the lanes now; nothing more may be published under this epoch."""


class LanesHeldError(RuntimeError):
    """Another relay holds the lanes; `seconds` are left of its lease."""

    def __init__(self, owner: str, seconds: float) -> None:
        super().__init__(
            f"the lanes are held by the relay {owner} (its lease ends in {seconds:.1f} s unless it renews it). "
            "Only one relay may run at a time; see it with: outbox status"
        )
        self.owner = owner
        self.seconds = seconds


class LanesLockedError(RuntimeError):
    """Another session holds locks of the lanes in an open transaction; `holders` describes who may."""

    def __init__(self, holders: list[str]) -> None:
        super().__init__(
            f"rows of outbox.lane are locked by {', '.join(holders) or 'a session that has ended'}"
        )
        self.holders = holders


def owner_name() -> str:
    """Name this process for people and for the lease: host, pid and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


@dataclass(slots=True)
class Lease:
    """The ownership of all lanes under one epoch."""

    owner: str
    epoch: int
    seconds: float
    progress: dict[int, Progress]
    stopped: frozenset[int] = frozenset()
    """The lanes that were stopped when they were taken."""
    doubted: dict[int, int] = field(default_factory=dict)
    """Per lane, up to which position earlier owners may have given messages to Kafka without recording it."""
    refused: dict[int, str] = field(default_factory=dict)
    """Of lanes that were stopped, the message at which they were, where it is certain that Kafka does not have it."""

    def renew(self, conn: psycopg.Connection[Any]) -> None:
        """Extend the lease.

        Raises:
            LeaseLostError: not all lanes are ours any more.
        """
        values = {"lease": self.seconds, "epoch": self.epoch, "owner": self.owner, "owned": LANES}
        if not conn.execute(STATEMENTS["renew"], values, prepare=True).rowcount:
            raise LeaseLostError(f"another relay has taken lanes from {self.owner} (epoch {self.epoch})")

    def release(self, conn: psycopg.Connection[Any], doubted: Mapping[int, int] | None = None) -> None:
        """Give the lanes back; `doubted` is per lane up to which position Kafka may have what is not recorded."""
        known = doubted or {}
        values = {
            "epoch": self.epoch,
            "owner": self.owner,
            "lanes": list(known),
            "until": list(known.values()),
        }
        conn.execute(STATEMENTS["release"], values)


def take(conn: psycopg.Connection[Any], owner: str, seconds: float) -> Lease:
    """Take all lanes under a new epoch, with the progress recorded by their last owner.

    A session that holds row locks of the lanes and is frozen (a relay in the middle of taking or recording) is
    ended by its own idle time-out, which is one lease; until then this raises LanesLockedError every second.

    Raises:
        LanesHeldError: a living relay holds some of them.
        LanesLockedError: somebody held their locks for a second; nothing was changed.
    """
    try:
        return _take(conn, owner, seconds)
    except psycopg.errors.LockNotAvailable:
        raise LanesLockedError(lock_holders(conn)) from None


def lock_holders(conn: psycopg.Connection[Any]) -> list[str]:
    """Describe the sessions that may hold locks of lanes' rows, oldest transaction first."""
    return [row[0] for row in conn.execute(STATEMENTS["lock_holders"]).fetchall()]


def _take(conn: psycopg.Connection[Any], owner: str, seconds: float) -> Lease:
    with conn.transaction():
        conn.execute(STATEMENTS["lock_timeout"], {"ms": f"{LOCK_WAIT_S * 1000:.0f}"})
        conn.execute(STATEMENTS["lock"])
        # What follows works under these locks; a wait for a producer's row lock must not undo it.
        conn.execute(STATEMENTS["lock_timeout"], {"ms": "0"})
        holder = conn.execute(STATEMENTS["holders"], {"owner": owner}).fetchone()
        if holder is not None:
            raise LanesHeldError(*holder)
        restored = _one(conn, "has_foreign_xids")
        if restored:
            _adopt(conn)
        system_identifier = _one(conn, "cluster")
        epoch = _one(conn, "epoch")
        rows = conn.execute(STATEMENTS["progress"], {"system_identifier": system_identifier}).fetchall()
        progress = {lane: _progress(snapshot, base, after) for lane, snapshot, base, after, _ in rows}
        stopped = frozenset(row[0] for row in rows if row[4])
        values = {"system_identifier": system_identifier, "restored": restored}
        doubts = conn.execute(STATEMENTS["doubts"], values).fetchall()
        doubted = {lane: until for lane, until, _ in doubts}
        refused = {lane: message_id for lane, _, message_id in doubts if message_id is not None}
        for lane, known in progress.items():
            conn.execute(
                STATEMENTS["take"],
                {
                    "owner": owner,
                    "epoch": epoch,
                    "system_identifier": system_identifier,
                    "lane": lane,
                    "doubted_until": doubted[lane],
                    **columns(known),
                },
            )
        conn.execute(STATEMENTS["clear"])
        conn.execute(STATEMENTS["lease"], {"owner": owner, "epoch": epoch, "lease": seconds})
    return Lease(owner, epoch, seconds, progress, stopped, doubted, refused)


def _adopt(conn: psycopg.Connection[Any]) -> None:
    """Make messages of another cluster, restored into this one, visible to the finder, each once and in order.

    Part of taking the lanes: it is done as a whole or not at all, and no relay publishes meanwhile. Producers go
    on; what they write has higher positions than what is adopted only if they begin afterwards, so a restored
    database should have its relay started first.
    """
    again = conn.execute(STATEMENTS["adopt_unpublished"]).rowcount
    old = conn.execute(STATEMENTS["adopt_published"]).rowcount
    log.warning("messages of another cluster adopted", to_publish=again, published_there=old)


def columns(progress: Progress) -> dict[str, Any]:
    """Write a progress as the columns snapshot, base and after; START is all NULL."""
    if progress == START:
        return {"snapshot": None, "base": None, "after": None}
    return {
        "snapshot": str(progress.snapshot),
        "base": None if progress.base is None else str(progress.base),
        "after": progress.after,
    }


def _progress(snapshot: str | None, base: str | None, after: int | None) -> Progress:
    if snapshot is None:
        return START
    return Progress(Snapshot.parse(snapshot), None if base is None else Snapshot.parse(base), after)


def _one(conn: psycopg.Connection[Any], name: str) -> Any:
    row = conn.execute(STATEMENTS[name]).fetchone()
    assert row is not None  # noqa: S101  (a SELECT of one value)
    return row[0]
