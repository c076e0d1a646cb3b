"""Which lanes a relay has: its share of them, taken while they are free and given back when they are another's.

Every relay reads the same table four times a second, and computes the same shares: living relays that do not drain, in
the order of their epochs, have equal runs of neighbouring lanes. No relay takes from a living one, and none asks
another: one with more than its share gives back, one that finds free lanes of its share takes them. A relay beyond
the eighth has no lane, and takes over when another ends.

A loop has a fixed set of lanes (see session.py). When lanes are to be taken or given back it reads no more, and ends
when everything on the wire is acknowledged and recorded. So the next owner publishes nothing twice. Schedules, between
any two lines:

- The relay dies, or pauses past its lease, before the lanes are given back: they are its own until the lease runs out
  (or at once when its session is gone); then they are taken, with what is recorded. After it: they are free, and a
  relay that wakes up has none of them.
- A poll, barrier or record of the old owner arrives when a lane is taken: it names the lanes that it speaks for, and
  finds another epoch there. The session ends, and joins again. Without traffic there is no barrier: the next read of
  the shares finds that lanes are not its own. Else a lane whose new owner ended, too, would stay without one.
- Two relays compute shares from different moments: both may find a lane to be their share. The lanes are locked when
  they are taken, and only a lane without a living owner is taken, so one of them has it; if it is not that relay's
  share a moment later, it gives it back.
- The connection is lost while lanes are taken: as if the relay had died after it. While they are given back: the same.
- The shares change while a loop ends: what is not its share any more is given back, and what is free is taken.
- A partition acknowledges nothing: it is held, and the loop ends. If Kafka acknowledges nothing at all to this relay,
  it leaves the lanes after `LEAVE_S` as if it had died, and joins again when Kafka replies.
- No broker replies to this relay, which keeps its lease: after `LEAVE_S` it leaves all its lanes in the same way, if
  there is another relay that has not stated the same with its renewals, three in a lease. So nothing moves where Kafka
  is away from all. One that had nothing to publish has stated nothing: it takes the lanes, and keeps them if Kafka is
  away from it, too. What was on the wire may reach Kafka late, as that of a paused relay does.
- Another session holds the row of a lane that is to be given back: it is published further, and tried again, later
  each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from outbox.partitioning.lanes import LANES
from outbox_relay.publisher.lease import DIVIDED_SESSION, STATEMENTS, CannotShareError, Lease, LeaseLostError

LEAVE_S = 30.0
"""After so long without Kafka, or without an acknowledgement of lanes to give back, a relay leaves them to others."""
BALANCE_EVERY_S = 0.25
"""How often the shares are read. A lane that is handed over stands still for half of that on average, and its drain."""


def share_of(epochs: Sequence[int], epoch: int, lanes: int = LANES) -> frozenset[int]:
    """Return the lanes that are the share of one relay.

    Args:
        epochs: those of the living relays that do not drain, in the order in which their processes joined.
        epoch: one of them.
        lanes: how many there are to share.

    Returns:
        Neighbours; the shares of all relays are disjoint, cover all lanes, and differ by one lane at most.
    """
    rank = epochs.index(epoch)
    least, more = divmod(lanes, len(epochs))
    first = rank * least + min(rank, more)
    return frozenset(range(first, first + least + (rank < more)))


class Shares:
    """Reads which lanes are this relay's share, and which are free."""

    def __init__(self, conn: psycopg.Connection[Any], lease: Lease) -> None:
        self._conn = conn
        self._lease = lease
        self.is_draining = False
        """Whether an operator has asked this relay to give its lanes to others."""
        self.others_have_kafka = False
        """Whether another relay, which does not lack Kafka, may take lanes of this one."""
        self.has_older = False
        """Whether a relay lives that does not know the hold of a partition."""
        self.generation = 0
        """How often topics were changed; see hands/topic_watch.py."""

    def read(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the lanes of this relay's share, and those that no living relay owns.

        While our own lease has run out the share is what we have: the next poll or barrier decides.

        Raises:
            CannotShareError: the connection does not keep its session.
            LeaseLostError: another relay took lanes that were ours.
        """
        mine = self._lease
        values = {"epoch": mine.epoch, "owner": mine.owner}
        row = self._conn.execute(STATEMENTS["shares"], values, prepare=True).fetchone()
        assert row is not None  # noqa: S101  (a SELECT without FROM has a row)
        epochs, free, is_draining, own, mark, self.generation, self.others_have_kafka, self.has_older = row
        if mark != str(mine.epoch):
            raise CannotShareError(DIVIDED_SESSION)
        if lost := mine.lanes.difference(own):
            raise LeaseLostError(
                f"lanes {sorted(lost)} of {mine.owner} (epoch {mine.epoch}) were taken by another relay"
            )
        self.is_draining = bool(is_draining)
        if self.is_draining:
            return frozenset(), frozenset(free)
        return share_of(epochs, mine.epoch) if mine.epoch in epochs else mine.lanes, frozenset(free)

    def read_generation(self) -> int:
        """Return how often topics were changed by now."""
        row = self._conn.execute(STATEMENTS["topic_generation"], prepare=True).fetchone()
        assert row is not None  # noqa: S101  (the table has one row)
        self.generation = row[0]
        return self.generation
