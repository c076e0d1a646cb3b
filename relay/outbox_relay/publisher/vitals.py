"""What a relay shows of itself to other threads: whether its loop makes progress, what it has done, what is in its way.

The relay's thread writes, any thread reads. Each value is one number or reference, so a reader sees it old or new, and
never half. Counts of earlier sessions are added up when a session ends: nothing that was counted is forgotten while the
process lives.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outbox_relay.publisher.counts import Counts, Times
from outbox_relay.publisher.renewal import Renewal

if TYPE_CHECKING:
    from outbox_relay.publisher.session import Session

HANGS_S = 120.0
"""Without a lease: seconds without a sign after which the relay hangs. Opening a connection takes 10 s at most."""


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
        self.ack, self.age = Times(), Times()
        """As of `Counts`, of all sessions."""
        self._counted: tuple[Counts, Counts] = Counts(), Counts()
        """Of earlier sessions and of this one, in one reference: a reader counts no session twice, or not at all."""
        self._session: Session | None = None
        self._renewal: Renewal | None = None
        self._signed = time.monotonic()

    def sign(self) -> None:
        """Note that the relay goes on."""
        self._signed = time.monotonic()

    def begin(self, session: Session, renewal: Renewal) -> None:
        """Note that a session has a lease, and publishes."""
        session.counts.ack, session.counts.age = self.ack, self.age
        self._counted = self._counted[0], session.counts
        self._session, self._renewal = session, renewal
        self.sign()

    def end(self) -> None:
        """Note that the session has ended."""
        self.sign()
        self._session = self._renewal = None
        self._counted = self.counts, Counts()

    @property
    def counts(self) -> Counts:
        """What all sessions have done."""
        before, now = self._counted
        return before.plus(now)

    @property
    def lanes(self) -> frozenset[int]:
        """The lanes that the relay owns."""
        session = self._session
        return frozenset() if session is None else session.lanes

    @property
    def unacknowledged(self) -> int:
        """Messages that were given to Kafka and are not acknowledged, without those of lanes set aside."""
        session = self._session
        return 0 if session is None else session.unacknowledged

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
