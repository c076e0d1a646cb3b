"""What can keep a message from being published, and what that means for its lane."""

from __future__ import annotations

from typing import Any, NamedTuple

from outbox_relay.publisher.snapshot import Snapshot

REFUSED = frozenset(
    {
        "MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD", "POLICY_VIOLATION",
        "TOPIC_AUTHORIZATION_FAILED", "UNKNOWN_TOPIC_OR_PART", "TOPIC_EXCEPTION",
        "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION", "_MSG_SIZE_TOO_LARGE", "UNSUPPORTED_FOR_MESSAGE_FORMAT",
        "INVALID_TIMESTAMP", "UNSUPPORTED_COMPRESSION_TYPE", "_INVALID_ARG",
    }
)  # fmt: skip
"""Errors of Kafka that the same message would cause again: its key or topic is parked. After any other a new producer
tries again."""


class Unpublishable(Exception):
    """A message that cannot be published as it is; it parks its key or its topic.

    `code` names the reason for people and machines, such as UNKNOWN_TOPIC_OR_PART or MESSAGE_TOO_LARGE.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text


class KafkaUnavailableError(ConnectionError):
    """No broker replies: nothing is decided, the relay waits and tries again."""


class Refused(NamedTuple):
    """A message that Kafka refused for good, with its topic; the reason begins with its code.

    `row` is the message if it was the only one of its batch. `of_drain`: the batch was one of a parked key. `seen`:
    what was visible when the batch was read.
    """

    position: int
    message_id: str
    topic: str
    reason: str
    row: tuple[Any, ...] | None = None
    of_drain: bool = False
    seen: Snapshot | None = None


class DeliveryError(RuntimeError):
    """Kafka refused or lost a message; its producer must not be used any further.

    `refused` is per lane the last message that may be refused for good; empty when a new producer may simply try again.
    """

    def __init__(self, text: str, refused: dict[int, Refused]) -> None:
        super().__init__(text)
        self.refused = refused


class OutOfOrderError(DeliveryError):
    """The offsets of a partition did not ascend, which must never be; nothing of that producer is recorded any more."""


class BrokenError(DeliveryError):
    """An invariant of the relay does not hold; it starts over from what is recorded, later each time."""
