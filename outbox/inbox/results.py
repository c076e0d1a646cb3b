"""What a listener returns for a message."""

from __future__ import annotations

from enum import Enum


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


def is_success(result: object) -> bool:
    """Return whether what was written may be committed: nothing of a batch is, unless all of it succeeded."""
    results = result if isinstance(result, list | tuple) else [result]
    return all(each is ConsumeResult.SUCCESS for each in results)
