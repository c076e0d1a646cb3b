"""The lease: each relay owns its lanes under an epoch, for as long as it renews its lease in the database's time.

A relay joins with a new epoch and no lanes; lanes come and go under it (leading.py decides which). What happens
when an owner dies or pauses, between any two lines: its rows in outbox.lane stay as they are until the lease runs out
(or its database session is gone), then other relays take the lanes under their epochs and start from the progress that
was recorded. A paused owner that wakes up finds another epoch at its next poll or barrier, before it publishes
anything further; what it had already given to Kafka is at worst published twice, with the same message ids, and after
the first appearance: each owner publishes a gap-free run, in order, that starts at or before the recorded progress. It
then joins again under a new epoch.

A process that dies or freezes while it takes lanes holds their locks only until its session ends: at once, or
after a lease in an idle transaction. Until then a taker waits, and logs for whom.

Between relays that deliver at least once and exactly once lanes change under conditions. Batches of a shard have two
transactional ids, so one relay has all of its lanes, or none. The relay that takes them fences the former owner by
these ids, whatever it does itself then. Nothing fences a relay that delivers at least once: it is done when it has
given the lanes back, and dead when its lease has run out and PostgreSQL has ended its session.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg

from outbox.partitioning.lanes import LANES
from outbox.statements import Statements, array_text
from outbox_relay.publisher.shard import ALL_LANES, Guarantee, Shard
from outbox_relay.publisher.snapshot import BEGINNING, Floor, Snapshot
from outbox_relay.text.errors import OperatorError
from outbox_relay.text.logs import Log

STATEMENTS = Statements("outbox_relay/publisher/lanes.sql")
ROW_WAIT_MS = 50
"""How long the publishing loop waits for rows that another session holds: of outbox.waiting, or of topics."""
LOCK_WAIT_S = 1.0
"""When a row of outbox.lane that another session holds is tried again."""
TAKE_WAIT_S = 0.1
"""Taking lanes waits so long for other takers; meanwhile the lanes that a relay has stand still."""
VERSION = 2
"""Of the protocol by which relays hand lanes over; raised with each change that the version before does not know."""

log = Log("lanes")


class LeaseLostError(RuntimeError):
    """Another relay owns lanes of ours now; nothing more may be published under this epoch."""


class LanesLockedError(RuntimeError):
    """Another session holds the lock by which lanes are taken; `holders` describes who may."""

    def __init__(self, holders: list[str]) -> None:
        super().__init__(f"outbox.lease is locked by {', '.join(holders) or 'a session that has ended'}")
        self.holders = holders

    def report(self) -> None:
        """Log who holds the lock."""
        log.warning("the lanes are locked, waiting", held_by=self.holders or "a session that has ended")


class RelayRefusedError(OperatorError):
    """This relay cannot work with the others, or with this database; the text names why, and what repairs it."""


DIVIDED_SESSION = (
    "the relay's statements reach different sessions of PostgreSQL: a pooler in transaction or statement "
    "mode is in between\nlet --dsn (OUTBOX_DSN) name the server itself, or a pooler in session mode"
)


def owner_name() -> str:
    """Name this process for people and for the lease: host, pid and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


@dataclass(slots=True)
class Taken:
    """Lanes that were taken, with what their last owner left of them."""

    floors: dict[int, Snapshot] = field(default_factory=dict)
    """Everything that this snapshot sees of a lane is published, or waits."""
    doubted: dict[int, int] = field(default_factory=dict)
    """Per lane, up to which position earlier owners may have given messages to Kafka without recording it."""
    left: frozenset[int] = frozenset()
    """The lanes whose last owner may still read and publish until the take is committed."""


@dataclass(slots=True)
class Lease:
    """One relay's epoch, and the lanes that it owns under it; `seconds` is how long it lasts without a renewal."""

    owner: str
    epoch: int
    seconds: float
    lanes: frozenset[int] = frozenset()
    since: datetime | None = None
    """When this process joined first."""
    follows: tuple[int, list[str]] = (0, [])
    """By this generation of topics the relay publishes, but for these topics; written with each renewal."""
    lacks_kafka: bool = False
    """Whether no broker replies, while something waits for one; written with each renewal."""
    shard: Shard = ALL_LANES
    """It leads lanes of this shard only."""
    delivery: Guarantee = Guarantee.AT_LEAST_ONCE
    _waits_for: str | None = None
    """The relay that delivers at least once, and is waited for."""

    def renew(self, conn: psycopg.Connection[Any]) -> None:
        """Extend the lease.

        Raises:
            LeaseLostError: it has ended, and none of its lanes is ours any more.
        """
        topics_seen, topics_behind = self.follows
        values = {
            "lease": self.seconds,
            "epoch": self.epoch,
            "owner": self.owner,
            "topics_seen": topics_seen,
            "topics_behind": topics_behind,
            "lacks_kafka": self.lacks_kafka,
        }
        if not conn.execute(STATEMENTS["renew"], values, prepare=True).rowcount:
            raise LeaseLostError(
                f"the lease of {self.owner} (epoch {self.epoch}) ran out, and other relays took its lanes"
            )

    def take(self, conn: psycopg.Connection[Any], lanes: Iterable[int], batch: int = 0) -> Taken:
        """Take those of the lanes that no living relay owns, with the floors recorded by their last owners.

        A row that another session holds is left: the lane is not among those returned.

        Args:
            conn: the loop's connection.
            lanes: the lanes to take.
            batch: the first batch of this epoch that may speak for them.

        Raises:
            LanesLockedError: another session held the lock of taking for longer than TAKE_WAIT_S; nothing was changed.
            LeaseLostError: the lease has ended.
        """
        try:
            taken = self._take(conn, lanes, batch)
        except psycopg.errors.LockNotAvailable:
            raise LanesLockedError(lock_holders(conn)) from None
        self.lanes |= taken.floors.keys()
        if taken.left:
            # Once more: until the commit the last owner's polls found the lanes its own. Nothing has to be written: who
            # takes the lanes from us asks again, and whoever they are given back to is told what is noted here.
            newest = newest_position(conn)
            taken.doubted |= {lane: max(newest, taken.doubted[lane]) for lane in taken.left}
        return taken

    def _take(self, conn: psycopg.Connection[Any], lanes: Iterable[int], batch: int) -> Taken:
        mine, taken = {"owner": self.owner, "epoch": self.epoch}, Taken()
        with conn.transaction() as transaction:
            conn.execute(STATEMENTS["lock_timeout"], {"ms": f"{TAKE_WAIT_S * 1000:.0f}"})
            # Frozen here, this process keeps other relays from renewing: it loses its session before they lose lanes.
            conn.execute(STATEMENTS["idle_timeout"], {"ms": _idle_ms(self.seconds)})
            conn.execute(STATEMENTS["lock"])
            # What follows works under this lock, and others renew their leases behind it.
            conn.execute(STATEMENTS["lock_timeout"], {"ms": str(ROW_WAIT_MS)})
            self.renew(conn)
            rows = conn.execute(STATEMENTS["lock_free"], {**mine, "lanes": array_text(lanes)}).fetchall()
            free = frozenset(lane for (lane,) in rows)
            if not free or not self._may_take(conn, free):
                return taken
            is_copied = _one(conn, "is_copied")
            if is_copied:
                log.warning("a dump was restored into this database")
                if conn.execute(STATEMENTS["leave_timeline"]).rowcount != LANES:
                    raise psycopg.Rollback(transaction)  # somebody holds a lane's row: again in a moment
            restored = _one(conn, "has_foreign_xids", {"is_copied": is_copied})
            if restored and conn.execute(STATEMENTS["others"], {"owner": self.owner}).fetchone() != (0,):
                log.warning(
                    "messages of another cluster are not published while other relays have lanes",
                    repair="stop the other relays of this database; one that runs alone publishes them",
                )
                raise psycopg.Rollback(transaction)
            held = _not_marked(conn, free, restored=restored)
            free -= held
            if not free or (held and (restored or not self._may_take(conn, free))):
                return taken  # once restored messages are taken over nothing shows any more that they were
            if restored:
                # No other relay has lanes, and a wait for a producer's row lock must not undo it.
                conn.execute(STATEMENTS["lock_timeout"], {"ms": "0"})
                _take_over_restored(conn)
            floors = {lane: floor.snapshot for lane, floor in read_floors(conn).items() if lane in free}
            # In the transaction that writes where the lanes are: it is noted, or the next taker finds it again.
            _note_failover(conn, free)
            values = {**mine, "batch": batch, "delivery": str(self.delivery), "restored": restored}
            # A relay of the version before reads NULL as "none is known".
            texts = [None if floor == BEGINNING else str(floor) for floor in floors.values()]
            values |= {"lanes": array_text(floors), "floors": texts}
            rows = conn.execute(STATEMENTS["take"], values).fetchall()
            conn.execute(STATEMENTS["note_origin"])
            conn.execute(STATEMENTS["clear"], {"epoch": self.epoch})
            doubted = {lane: until for lane, until, _ in rows}
            taken = Taken(floors, doubted, frozenset(lane for lane, _, is_left in rows if is_left))
        return taken  # nothing, if that was rolled back

    def _may_take(self, conn: psycopg.Connection[Any], free: frozenset[int]) -> bool:
        """Return whether lanes that are free, and locked, can be taken."""
        values = {"lanes": array_text(free)}
        is_exact = self.delivery is Guarantee.EXACTLY_ONCE
        has_batches = is_exact or conn.execute(STATEMENTS["is_exactly_once"], values).fetchone() == (True,)
        if has_batches and free | self.lanes != self.shard.lanes:
            return False
        row = conn.execute(STATEMENTS["not_ended"], values).fetchone() if is_exact else None
        other = None if row is None else str(row[0])
        if other is not None and other != self._waits_for:
            log.warning(
                "waiting for a relay that delivers at least once",
                owner=other,
                repair="stop it, or, if its process is gone, let PostgreSQL end its session",
            )
        self._waits_for = other
        return other is None

    def give_back(self, conn: psycopg.Connection[Any], doubted: Mapping[int, int]) -> frozenset[int]:
        """Give settled lanes back and keep the lease; return the lanes that are given back.

        Those whose row another session holds stay ours.

        Args:
            conn: the loop's connection.
            doubted: per lane to give back, up to which position Kafka may have what is not recorded.
        """
        rows = conn.execute(STATEMENTS["give_back"], self._noted(doubted)).fetchall()
        given = frozenset(lane for (lane,) in rows)
        self.lanes -= given
        return given

    def release(self, conn: psycopg.Connection[Any], doubted: Mapping[int, int] | None = None) -> None:
        """Give all lanes back and end the lease; leave them as if we had died where somebody locks their tables.

        Args:
            conn: the loop's connection.
            doubted: per lane up to which position Kafka may have what is not recorded.
        """
        try:
            with conn.transaction():
                conn.execute(STATEMENTS["lock_timeout"], {"ms": f"{LOCK_WAIT_S * 1000:.0f}"})
                conn.execute(STATEMENTS["release"], self._noted(doubted or {}))
        except psycopg.errors.LockNotAvailable:
            log.warning("lanes not given back", lanes=sorted(self.lanes), held_by=lock_holders(conn))
        self.lanes = frozenset()

    def ownership(self, lanes: Iterable[int]) -> dict[str, Any]:
        """Return the values by which a statement asks whether lanes are ours."""
        return {"epoch": self.epoch, "owner": self.owner, "mine": array_text(lanes)}

    def _noted(self, doubted: Mapping[int, int]) -> dict[str, Any]:
        return {
            "epoch": self.epoch,
            "owner": self.owner,
            "lanes": list(doubted),
            "until": list(doubted.values()),
        }


def join(
    conn: psycopg.Connection[Any],
    owner: str,
    seconds: float,
    *,
    shard: Shard = ALL_LANES,
    delivery: Guarantee = Guarantee.AT_LEAST_ONCE,
    since: datetime | None = None,
    is_draining: bool = False,
) -> Lease:
    """Join the relays of this database with a new epoch, without lanes.

    Args:
        conn: the loop's connection, in autocommit.
        owner: this process's name.
        seconds: how long the lease lasts without a renewal.
        shard: the lanes that it may lead.
        delivery: what it promises about each message.
        since: when this process joined first, by the database's clock; None: it joins now.
        is_draining: whether an operator asked this process to drain, in an earlier session.

    Raises:
        RelayRefusedError: a living relay speaks another version or divides the lanes otherwise, or the database has
            another number of lanes.
        LanesLockedError: a session that takes lanes holds their lock; nothing was changed.
    """
    if (found := _one(conn, "lane_numbers")) != LANES:
        raise RelayRefusedError(
            f"the database has {found} lanes, and this version works with {LANES}\n"
            "run the version of outbox-kafka that made the schema, or restore the rows of outbox.lane"
        )
    values = {"owner": owner, "version": VERSION, "shard": str(shard), "is_draining": is_draining}
    values |= {"lease": seconds, "since": since}
    try:
        with conn.transaction():
            conn.execute(STATEMENTS["lock_timeout"], {"ms": f"{LOCK_WAIT_S * 1000:.0f}"})
            conn.execute(STATEMENTS["idle_timeout"], {"ms": _idle_ms(seconds)})
            # One at a time, so that of two relays that do not agree the second sees the first.
            conn.execute(STATEMENTS["lock"])
            _refuse_to_disagree(conn, owner, shard)
            row = conn.execute(STATEMENTS["join"], values).fetchone()
            assert row is not None  # noqa: S101  (INSERT … RETURNING)
            conn.execute(STATEMENTS["clear"], {"epoch": row[0]})
            conn.execute(STATEMENTS["mark_session"], {"epoch": str(row[0])})
    except psycopg.errors.LockNotAvailable:
        raise LanesLockedError(lock_holders(conn)) from None
    return Lease(owner, row[0], seconds, since=row[1], shard=shard, delivery=delivery)


def _refuse_to_disagree(conn: psycopg.Connection[Any], owner: str, shard: Shard) -> None:
    values = {"owner": owner, "version": VERSION, "count": shard.count}
    found = conn.execute(STATEMENTS["disagreeing"], values).fetchone()
    if found is None:
        return
    other, version, theirs = found
    if abs(version - VERSION) > 1:
        raise RelayRefusedError(
            f"the relay {other} hands lanes over by version {version} of the protocol, this one by {VERSION}; "
            "they can be one apart\nupgrade by way of a release in between, or stop the other relay first"
        )
    raise RelayRefusedError(
        f"--shard {shard} divides the lanes by {shard.count}, and the relay {other} leads shard {theirs}; "
        "all relays of a database divide its lanes by one number\ngive this relay a --shard (OUTBOX_SHARD) of "
        f"{theirs.partition('/')[2]}, or stop the relays that divide otherwise first: outbox relay ls"
    )


def _idle_ms(seconds: float) -> str:
    """Half a lease: others renew theirs in time. Half a second at least, for a process that only waits for its turn."""
    return f"{max(seconds / 2, 0.5) * 1000:.0f}"


def lock_holders(conn: psycopg.Connection[Any]) -> list[str]:
    """Describe the sessions that may hold locks of lanes, oldest transaction first."""
    return [row[0] for row in conn.execute(STATEMENTS["lock_holders"]).fetchall()]


def read_floors(conn: psycopg.Connection[Any]) -> dict[int, Floor]:
    """Read the recorded floor of every lane."""
    rows = conn.execute(STATEMENTS["floors"]).fetchall()
    return {
        lane: Floor(BEGINNING if snapshot is None else Snapshot.parse(snapshot), is_partial, epoch)
        for lane, snapshot, is_partial, epoch in rows
    }


def _not_marked(conn: psycopg.Connection[Any], lanes: frozenset[int], *, restored: bool) -> frozenset[int]:
    """Mark what waits in lanes that were another server's as in doubt; return those that hold a locked row of it."""
    rows = conn.execute(STATEMENTS["doubt_held"], {"lanes": array_text(lanes), "restored": restored})
    return frozenset(lane for (lane,) in rows)


def _note_failover(conn: psycopg.Connection[Any], lanes: frozenset[int]) -> None:
    row = conn.execute(STATEMENTS["note_failover"], {"lanes": array_text(lanes)}).fetchone()
    if row is not None:
        log.warning(
            "this server took over from another one",
            from_system_identifier=row[0],
            from_timeline=row[1],
            system_identifier=row[2],
            timeline=row[3],
            repair="outbox failover scan",
        )


def _take_over_restored(conn: psycopg.Connection[Any]) -> None:
    """Make messages of another cluster, restored into this one, visible to the finder, each once and in order.

    Part of taking the lanes: it is done as a whole or not at all, and no relay publishes meanwhile. Producers go on:
    what is taken over keeps its positions, and theirs are higher.
    """
    again = conn.execute(STATEMENTS["take_over_unpublished"]).rowcount
    old = conn.execute(STATEMENTS["take_over_published"]).rowcount
    log.warning("messages of another cluster enqueued", to_publish=again, published_there=old)


def newest_position(conn: psycopg.Connection[Any]) -> int:
    """Return the newest position: no message that was read by now has a higher one."""
    return int(_one(conn, "newest"))


def _one(conn: psycopg.Connection[Any], name: str, values: Mapping[str, Any] | None = None) -> Any:
    [(value,)] = conn.execute(STATEMENTS[name], values).fetchall()
    return value
