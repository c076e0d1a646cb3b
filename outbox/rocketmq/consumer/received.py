"""What RocketMQ's listeners are given: a message by RocketMQ's names, and the connection of its transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from outbox.inbox import ConsumedMessage

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class MessageExt:
    """A message with the names of RocketMQ's `MessageExt` (4.x) and `MessageView` (5.x).

    Its listener writes on `connection`: what it writes is committed with the row of the inbox, or not at all.
    """

    message: ConsumedMessage
    connection: Any = field(repr=False, compare=False)
    """The open transaction in which the message is recorded. Do not commit it, roll it back or close it."""

    @property
    def msg_id(self) -> UUID:
        """The one id of the message for life: the header `outbox-id`."""
        return self.message.message_id

    @property
    def message_id(self) -> UUID:
        """5.x's name of `msg_id`."""
        return self.message.message_id

    @property
    def topic(self) -> str:
        """The topic."""
        return self.message.topic

    @property
    def body(self) -> bytes | None:
        """The body; None: a tombstone."""
        return self.message.body

    @property
    def tags(self) -> str | None:
        """The tags, joined by `||`; None without any. RocketMQ has one tag at most."""
        return "||".join(self.message.tags) or None

    @property
    def keys(self) -> str | None:
        """RocketMQ's KEYS, joined by blanks; None without any. Kafka's key is `message_group`."""
        return " ".join(self.message.keys) or None

    @property
    def message_group(self) -> bytes | None:
        """Kafka's key: messages of one key are in order."""
        return self.message.key

    @property
    def queue_id(self) -> int:
        """The partition."""
        return self.message.partition

    @property
    def queue_offset(self) -> int:
        """The offset in the partition."""
        return self.message.offset

    @property
    def reconsume_times(self) -> int:
        """How often it failed before."""
        return self.message.reconsume_times

    @property
    def delivery_attempt(self) -> int:
        """5.x: which attempt this is, from 1."""
        return self.message.reconsume_times + 1

    @property
    def born_timestamp(self) -> int:
        """When it was sent, in milliseconds since 1970."""
        return _milliseconds(self.message.born_at)

    @property
    def delivery_timestamp(self) -> int | None:
        """5.x: when a delayed message was due, in milliseconds since 1970; None: it was not delayed."""
        due = self.message.deliver_at
        return None if due is None else _milliseconds(due)

    @property
    def store_timestamp(self) -> int:
        """When it was published to Kafka, in milliseconds since 1970."""
        return _milliseconds(self.message.published_at)

    @property
    def properties(self) -> dict[str, str]:
        """The headers that are texts; the first one of a name."""
        found: dict[str, str] = {}
        for name, value in self.message.headers:
            if value is not None and name not in found:
                try:
                    found[name] = value.decode()
                except UnicodeDecodeError:
                    continue
        return found


def _milliseconds(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
