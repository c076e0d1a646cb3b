"""What the two programming models raise in addition to the errors of `outbox.errors`; all are `OutboxError`s."""

from __future__ import annotations

from outbox.errors import OutboxError


class ProducerStateError(OutboxError):
    """A producer or a transaction was used before its start, after its end, or without what it needs."""


class NoConnectionError(OutboxError):
    """All connections of a producer were in use for too long; nothing was written."""


class AmbiguousHalfMessageError(OutboxError):
    """Whether the half message was stored is not known, so its local transaction must not run.

    The cause is the driver's error. The text states whether the half message, if it is there, was rolled back; if that
    was not possible either, the check decides it.
    """
