"""What a listener returns for a message."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from outbox.inbox.delays import seconds_of
from outbox.inbox.failures import Failure, reported


class ConsumeResult(Enum):
    """What becomes of a message; whatever else a listener returns, and each exception, counts as a failure."""

    SUCCESS = "SUCCESS"
    """Commit what the listener wrote, together with the row of the inbox."""
    RECONSUME_LATER = "RECONSUME_LATER"
    """Take back what the listener wrote, and run it again after the delay of this attempt."""
    FAILURE = RECONSUME_LATER
    """RocketMQ 5.x's name of RECONSUME_LATER."""
    DISCARD = "DISCARD"
    """Take back what the listener wrote; the message is done without an effect."""
    DEAD = "DEAD"
    """Take back what the listener wrote; the message is a dead letter at once, without another try."""


@dataclass(frozen=True, slots=True)
class ReconsumeLater:
    """RECONSUME_LATER after a pause of the listener's own: seconds, or a text such as `30s` or `5m`.

    The attempt counts like others: after the last one of the group's delays the message is dead.

    Raises:
        ConfigurationError: The pause cannot be read, or is out of range.
    """

    pause: float | str

    def __post_init__(self) -> None:
        object.__setattr__(self, "pause", seconds_of(self.pause))


Consumed = ConsumeResult | ReconsumeLater
"""What becomes of one message."""
RESULTS = "a ConsumeResult, or ReconsumeLater(…)"


def failure_of(result: Consumed) -> Failure | None:
    """Return why a message failed whose listener returned this; None: it did not fail."""
    if isinstance(result, ReconsumeLater):
        return reported("the listener returned ReconsumeLater", pause=seconds_of(result.pause))
    if result in (ConsumeResult.RECONSUME_LATER, ConsumeResult.DEAD):
        return reported(f"the listener returned {result.name}", is_final=result is ConsumeResult.DEAD)
    return None


def is_success(result: object) -> bool:
    """Return whether what was written may be committed: nothing of a batch is, unless all of it succeeded."""
    results = result if isinstance(result, list | tuple) else [result]
    return all(each is ConsumeResult.SUCCESS for each in results)
