"""Which lanes a relay wants: all of its shard while it leads, and none while it stands by.

Of the relays of a shard one leads, and the others are warm standbys. Every relay reads the same tables four times a
second. No relay takes from a living one, and none asks another:

- A relay without lanes leads when no other one does: it takes the lanes of its shard that are free. A relay counts for
  this if it lives, has lanes of the same shard, does not drain, and does not lack Kafka.
- A relay with lanes leads, and takes what becomes free, unless one that counts has a lower epoch: then it gives all
  back.

So of the relays that count the one with the lowest epoch keeps its lanes and gets those of the others; it is never
replaced because another one joins. A relay of the version before states no shard and never counts. It has its part of
the lanes, gives back what its own rule leaves to others, and takes what its rule gives it, if that is free: a relay of
this version takes everything else.

A loop has a fixed set of lanes (see session.py). When lanes are to be taken or given back it reads no more, and ends
when everything on the wire is acknowledged and recorded. So the next owner publishes nothing twice. Schedules, between
any two lines:

- The relay dies, or pauses past its lease, before the lanes are given back: they are its own until the lease runs out
  (or at once when its session is gone); then they are taken, with what is recorded. After it: they are free, and a
  relay that wakes up has none of them.
- A poll, barrier or record of the old owner arrives when a lane is taken: it names the lanes that it speaks for, and
  finds another epoch there. The session ends, and joins again. Without traffic there is no barrier: the next read
  finds that lanes are not its own. Else a lane whose new owner ended, too, would stay without one.
- Two standbys find that no relay leads: the lanes are locked when they are taken, and only a lane without a living
  owner is taken, so the first one has all, and the second finds none free.
- The first leaves a lane whose row another session holds, and the second takes it a moment later; or relays of the
  version before give lanes back at different times: two relays have lanes. The younger one settles and gives its lanes
  back, and the older one takes them, though the younger may have had more.
- The older one dies, drains or loses Kafka meanwhile: it counts no longer. The younger one keeps its lanes, and takes
  what it has given back and what becomes free.
- A leader drains and no standby lives: it gives all back, and nothing is published until a relay joins, or until the
  drain is taken back. Taken back while a standby has lanes: it stands by, or, if it has kept some, has them all again.
- The connection is lost while lanes are taken: as if the relay had died after it. While they are given back: the same.
- What a relay wants changes while its loop ends: it is read again, then given back or taken.
- A partition acknowledges nothing: it is held, and the loop ends. If Kafka acknowledges nothing at all to this relay,
  it leaves the lanes after `LEAVE_S` as if it had died, and joins again when Kafka replies.
- No broker replies to this relay, which keeps its lease: after `LEAVE_S` it leaves all its lanes in the same way, if
  there is another relay that has not stated the same with its renewals, three in a lease. A standby asks Kafka, too,
  while the leader states that, and states the same until a broker has replied to it. So nothing moves where Kafka is
  away from all. What was on the wire may reach Kafka late, as that of a paused relay does.
- Another session holds the row of a lane that is to be given back: it is published further, and tried again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import psycopg

from outbox_relay.publisher.lease import (
    DIVIDED_SESSION,
    LOCK_WAIT_S,
    STATEMENTS,
    Lease,
    LeaseLostError,
    RelayRefusedError,
    lock_holders,
)
from outbox_relay.text.logs import Log

LEAVE_S = 30.0
"""After so long without Kafka, or without an acknowledgement of lanes to give back, a relay leaves them to others."""
LOOK_EVERY_S = 0.25
"""How often a relay reads who leads. A lane that is handed over stands still for half of that on average."""
REPEAT_S = 30.0
"""How often the same lane is logged while its row stays locked."""

log = Log("lanes")


def leads(epoch: int, *, has_lanes: bool, first: int | None) -> bool:
    """Return whether a relay leads its shard.

    Args:
        epoch: its own.
        has_lanes: whether it has lanes.
        first: the lowest epoch of the other relays that count; None: none does.
    """
    return first is None or (has_lanes and epoch < first)


class Leadership:
    """Reads whether this relay leads its shard, and which lanes are free."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease) -> None:
        self._conn = conn
        self._lease = lease
        self.is_draining = False
        """Whether an operator has asked this relay to give its lanes to others."""
        self.others_have_kafka = False
        """Whether another relay, which does not lack Kafka, may take lanes of this one."""
        self.leader_lacks_kafka = False
        """Whether no broker replies to another relay that has lanes of this shard."""
        self.generation = 0
        """How often topics were changed; see hands/topic_watch.py."""

    def read(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the lanes that this relay wants, and those that no living relay owns.

        Raises:
            RelayRefusedError: the connection does not keep its session.
            LeaseLostError: another relay took lanes that were ours.
        """
        mine = self._lease
        values = {"epoch": mine.epoch, "owner": mine.owner, "shard": str(mine.shard)}
        row = self._conn.execute(STATEMENTS["leadership"], values, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (a SELECT without FROM has a row)
        first, free, is_draining, own, mark, self.generation, *kafka = row
        self.others_have_kafka, self.leader_lacks_kafka = kafka
        if mark != str(mine.epoch):
            raise RelayRefusedError(DIVIDED_SESSION)
        if lost := mine.lanes.difference(own):
            raise LeaseLostError(
                f"lanes {sorted(lost)} of {mine.owner} (epoch {mine.epoch}) were taken by another relay"
            )
        self.is_draining = bool(is_draining)
        is_leader = not is_draining and leads(mine.epoch, has_lanes=bool(mine.lanes), first=first)
        return mine.shard.lanes if is_leader else frozenset(), frozenset(free)


class LockedRows:
    """Reports rows of outbox.lane that another session holds, each lane every half minute at most."""

    def __init__(self, conn: psycopg.Connection[Any]) -> None:
        self._conn = conn
        self._reported: dict[int, float] = {}
        self._missed: frozenset[int] = frozenset()

    def miss(self, lanes: frozenset[int]) -> None:
        """Note lanes that are free and could not be taken, and log those that were not the last time either.

        One that is missed once may have been taken by another relay.
        """
        if again := lanes & self._missed:
            self.report(again, "taking the lane")
        self._missed = lanes

    def report(self, lanes: Iterable[int], left: str) -> None:
        """Log that the rows of these lanes are held, by whom, and what repairs it.

        Args:
            lanes: whose rows are held.
            left: what the relay has not done because of that.
        """
        now = time.monotonic()
        new = sorted(lane for lane in lanes if now - self._reported.get(lane, -REPEAT_S) >= REPEAT_S)
        if not new:
            return
        self._reported.update(dict.fromkeys(new, now))
        log.warning(
            "lane row locked",
            lanes=new,
            held_by=lock_holders(self._conn) or "a session that has ended",
            not_done=left,
            next_try_in_s=LOCK_WAIT_S,
            repair="end that transaction: COMMIT, or pg_terminate_backend(pid); the other lanes go on meanwhile",
        )
