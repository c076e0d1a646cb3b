"""Whether Kafka still knows a member in its group, and when its client is replaced, as logic without I/O.

A client may lose all its brokers for good, in ways that differ and of which it reports some only (docs/adr/0019). So
what counts is the state that matters: the group's coordinator is heard of, by an assignment, even an empty one, or
because it has stored offsets. After too long a silence a client that is made for the question asks Kafka whether it
knows the member. A member that it does not know gets another client; so a member that has nothing to do keeps its own.
"""

from __future__ import annotations

import logging

log = logging.getLogger("outbox.inbox")
PATIENCE = 30.0
"""Seconds of silence beyond the session of the group after which Kafka is asked."""
AGAIN = 10.0
"""Seconds between two questions while Kafka does not reply."""
CONFIRM = 5.0
"""Seconds between two questions while Kafka replies that it does not know the member, which may be joining just now."""
IDLE_S = 60.0
"""Seconds without a partition after which that is reported, as in `groups` of consumers.sql; a rebalance takes less."""
AWAY = "no broker of Kafka is reachable"
UNKNOWN = "Kafka does not know this member in its group"


class Contact:
    """What a member knows of its place in the group; times are of the monotonic clock, in seconds. Not thread-safe."""

    def __init__(self, group: str, session: float, now: float) -> None:
        """Begin with the subscription.

        Args:
            group: its name.
            session: seconds after which Kafka gives up a member that is silent.
            now: the time.
        """
        self._group, self._patience = group, session + PATIENCE
        self._heard, self._next = now, now + self._patience
        self._asked: float | None = None
        """When the question was asked that has no answer yet."""
        self._unknown = 0
        """How often in a row Kafka did not know the member."""
        self._idle_since: float | None = now
        """Since when the member reads no partition; None: it reads some."""
        self._is_idle_logged = False
        self.trouble: str | None = None
        """Why the member cannot consume now; None: it can, as far as is known."""

    def heard(self, now: float) -> None:
        """Note that the coordinator of the group has dealt with the member."""
        self._heard, self._next = now, now + self._patience
        self._unknown, self.trouble = 0, None

    def lost_brokers(self, now: float) -> None:
        """Note that the client reports no broker: a reason to ask soon, and no more than that."""
        if self.trouble is None:
            self.trouble, self._next = AWAY, now + CONFIRM

    def reads(self, partitions: int, now: float) -> None:
        """Note how many partitions the member reads."""
        if partitions:
            self._idle_since, self._is_idle_logged = None, False
        elif self._idle_since is None:
            self._idle_since = now

    def is_due(self, now: float) -> bool:
        """Return whether to ask Kafka now; `answered` has to be called with the outcome."""
        if self._asked is not None or now < self._next:
            return False
        self._asked = now
        return True

    def answered(self, is_known: bool | None, now: float, *, finds_no_broker: bool = False) -> bool:
        """Note what Kafka replied; return whether to replace the client.

        Args:
            is_known: whether Kafka knows the member in its group; None: no reply.
            now: the time.
            finds_no_broker: whether the member's own client finds no broker: then one reply is enough.
        """
        asked, self._asked = self._asked, None
        if asked is None or self._heard > asked:
            return False  # the member was assigned partitions meanwhile, for example
        if is_known is None:
            self._unknown, self.trouble, self._next = 0, AWAY, now + AGAIN
            return False
        if is_known:
            self.heard(now)
            self._report_idle(now)
            return False
        self._unknown += 1
        self.trouble, self._next = UNKNOWN, now + CONFIRM
        return now - self._heard >= self._patience and (finds_no_broker or self._unknown > 1)

    def replaced(self, now: float) -> None:
        """Give a new client as much time as the one before had; the trouble lasts until it is heard of."""
        self._heard, self._next, self._unknown = now, now + self._patience, 0

    def _report_idle(self, now: float) -> None:
        """Log once that the member has nothing to read, which Kafka has just confirmed."""
        since = self._idle_since
        if since is None or self._is_idle_logged or now - since < IDLE_S:
            return
        self._is_idle_logged = True
        log.warning(
            "group %s: Kafka knows this member, and has assigned no partition to it for %.0f s: its topics have fewer "
            "partitions than the group has members, or do not exist; next: outbox consumers show %s",
            self._group,
            now - since,
            self._group,
        )
