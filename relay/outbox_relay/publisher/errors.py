"""What can keep a message from being published, what is held then, and how long the relay waits after a failure."""

from __future__ import annotations

from outbox.backoff import Backoff

PAUSE_FIRST_S, PAUSE_LAST_S = 0.05, 5.0
"""After a producer that failed."""
BROKEN_PAUSE_LAST_S = 60.0
"""After an error of the relay's own: each start over publishes again what was not recorded."""
FORGET_AFTER_S = 10.0
"""So long without another failure, the pause after the next one is the first again."""
REFUSED = frozenset(
    {
        "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD", "POLICY_VIOLATION",
        "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION",
        "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_MSG_SIZE_TOO_LARGE", "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "INVALID_TIMESTAMP", "UNSUPPORTED_COMPRESSION_TYPE", "_INVALID_ARG",
    }
)  # fmt: skip
"""Errors of Kafka that the same message would cause again: it is held, with its key or topic. After any other a new
producer tries again."""

TOPICS_FAULT = frozenset(
    {
        "TOPIC_PAUSED", "TOPIC_LOCKED", "UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "TOPIC_EXCEPTION",
        "TOPIC_AUTHORIZATION_FAILED", "PARTITIONS_MISSING", "LEADER_NOT_AVAILABLE", "_UNKNOWN_PARTITION",
        "UNSUPPORTED_COMPRESSION_TYPE", "UNSUPPORTED_FOR_MESSAGE_FORMAT", "INVALID_TIMESTAMP", "TOO_MANY_HELD",
        "TOO_MANY_PARKED", "NOT_ENOUGH_REPLICAS",
    }
)  # fmt: skip
"""Errors of every message of a topic: it is held. Any other is of one message, which its key waits for."""


class Unpublishable(Exception):
    """A message that cannot be published as it is; it is held, with its key or its topic.

    `code` names the reason for people and machines, such as UNKNOWN_TOPIC_OR_PART or MESSAGE_TOO_LARGE.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class KafkaUnavailableError(ConnectionError):
    """No broker replies: nothing is decided, the relay waits and tries again."""


class BrokenError(RuntimeError):
    """An invariant of the relay does not hold; it starts over from what is recorded, later each time."""


class PauseAfterFailure:
    """A pause that is longer with each failure, until none was for a while."""

    def __init__(self, longest: float) -> None:
        """Begin without a pause."""
        self.over_at = 0.0
        """When the pause is over (monotonic seconds)."""
        self._backoff = Backoff(PAUSE_FIRST_S, longest)

    def begin(self, now: float) -> float:
        """Begin a pause; return for how many seconds."""
        if now >= self.over_at + FORGET_AFTER_S:
            self._backoff.reset()
        pause = self._backoff.next()
        self.over_at = now + pause
        return pause
