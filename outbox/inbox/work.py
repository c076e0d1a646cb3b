"""A message in the hands of a thread, and what is known of it when another thread goes on with it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from outbox.inbox.failures import Failure
from outbox.inbox.handling import Connection
from outbox.inbox.messages import Attempt, Delivery
from outbox.inbox.plans import Taken


@dataclass(slots=True)
class Work:
    """A message in the hands of a thread, with the latest attempt to apply it.

    If the thread is given up or ends by itself, the next one gets all of it: a listener whose failure is known does not
    run again before that is parked.
    """

    key: Hashable
    delivery: Delivery
    attempt: Attempt | None = None
    failure: Failure | None = None
    """Why the message is parked; None: its listener has not failed, and runs."""
    interruptions: int = 0
    """How often in a row PostgreSQL ended its transaction."""
    taken: tuple[Connection, Taken] | None = None
    """Whether it was taken over ahead of its turn, in the transaction that this connection is in."""

    @classmethod
    def of(cls, key: Hashable, delivery: Delivery) -> Work:
        """Begin with a message that was taken, or go on with one that was given back."""
        return cls(key, delivery, delivery.attempt, delivery.failure, delivery.interruptions)

    def left(self, *, was_locked: bool = False) -> Delivery:
        """Return the message with what is known of it, to be given back."""
        return replace(
            self.delivery,
            failure=self.failure,
            attempt=self.attempt,
            interruptions=self.interruptions,
            was_locked=was_locked or self.delivery.was_locked,
        )
