"""What a relay shows of itself to other threads: whether its loop makes progress, what it has done, what is in its way.

The relay's thread writes, any thread reads. Each value is one number or reference, so a reader sees it old or new, and
never half. Nothing that was counted is forgotten while the process lives.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field

from outbox_relay.publisher.renewal import Renewal

HANGS_S = 120.0
"""Without a lease: seconds without a sign after which the relay hangs. Opening a connection takes 10 s at most."""
BOUNDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
"""Upper bounds of the classes of a `Times`, in seconds."""


class Times:
    """How often something took how long; one thread adds, others read."""

    def __init__(self) -> None:
        self.classes = [0] * (len(BOUNDS) + 1)
        """How many were at most each bound and more than the one before; the last: more than all."""
        self.total = 0.0
        """Their sum, in seconds."""

    def add(self, seconds: float) -> None:
        """Count one; a negative one, from two clocks, counts as nothing."""
        seconds = max(0.0, seconds)
        self.classes[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Counts:
    """What the relay has done so far."""

    published: int = 0
    recorded: int = 0
    batches: int = 0
    polls: int = 0
    unacknowledged: int = 0
    """Messages that were given to Kafka and are not acknowledged, without those of lanes set aside; as of now."""
    last_found: float = field(default_factory=time.monotonic)
    ack: Times = field(default_factory=Times)
    """From handing a batch to Kafka to its acknowledgement."""
    age: Times = field(default_factory=Times)
    """From the insertion of a batch's oldest message to its acknowledgement."""

    def acknowledged(self, since: float, at: float | None, born: float | None) -> None:
        """Count the times of a batch that Kafka acknowledged.

        Args:
            since: when it was given to Kafka, as of `time.monotonic()`.
            at: when that was acknowledged, by the same clock; None: now.
            born: when its oldest message was inserted, in seconds since 1970, if that is known.
        """
        now = time.monotonic()
        at = now if at is None else at
        self.ack.add(at - since)
        if born is not None:
            self.age.add(time.time() - (now - at) - born)


class Vitals:
    """Signs of life of one relay."""

    def __init__(self) -> None:
        self.failed = 0
        """Sessions that ended with an error."""
        self.unrecorded = 0
        """Messages on the wire at the ends of these sessions."""
        self.leases_lost = 0
        self.trouble: str | None = "it starts"
        """Why the relay could not publish now; None: it could."""
        self.counts = Counts()
        """What all sessions have done."""
        self._renewal: Renewal | None = None
        self._signed = time.monotonic()

    def sign(self) -> None:
        """Note that the relay goes on."""
        self._signed = time.monotonic()

    def begin(self, renewal: Renewal) -> None:
        """Note that a session has a lease, and publishes."""
        self._renewal = renewal
        self.sign()

    def end(self) -> None:
        """Note that the session has ended."""
        self.sign()
        self._renewal = None
        self.counts.unacknowledged = 0

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that the relay owns."""
        renewal = self._renewal
        return frozenset() if renewal is None else renewal.lease.lanes

    @property
    def silent(self) -> float:
        """Seconds since the relay's thread gave a sign."""
        renewal = self._renewal
        signed = self._signed if renewal is None else max(self._signed, renewal.beaten)
        return time.monotonic() - signed

    @property
    def hangs(self) -> bool:
        """Whether it should be started again: it gives no sign, and no statement of it runs."""
        renewal = self._renewal
        return self.silent > HANGS_S if renewal is None else renewal.is_stalled
