"""What can keep a message from being published, and what is held then."""

from __future__ import annotations

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
