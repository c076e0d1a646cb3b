"""RocketMQ 4.x's listeners of consumers, what they return, and how `outbox.inbox` runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from outbox.errors import ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult
from outbox.rocketmq.consumer.received import MessageExt
from outbox.rocketmq.results import MessageQueue


class ConsumeConcurrentlyStatus(Enum):
    """What a concurrent listener returns."""

    CONSUME_SUCCESS = "CONSUME_SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


class ConsumeOrderlyStatus(Enum):
    """What an orderly listener returns. RocketMQ's COMMIT and ROLLBACK, deprecated there, do not exist."""

    SUCCESS = "SUCCESS"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"
    """Only the key of the message waits; RocketMQ lets its whole queue wait."""


@dataclass(slots=True)
class ConsumeConcurrentlyContext:
    """Where the messages come from, and how many of them are done."""

    message_queue: MessageQueue
    """That of the first message."""
    ack_index: int = 2**31 - 1
    """To be set by a listener that returns CONSUME_SUCCESS: the place of the last message that is done, from 0; -1:
    none. What comes after it is tried again later."""


@dataclass(frozen=True, slots=True)
class ConsumeOrderlyContext:
    """Where the messages come from."""

    message_queue: MessageQueue
    """That of the first message."""


class MessageListenerConcurrently(ABC):
    """Handles messages without an order."""

    @abstractmethod
    def consume_message(
        self, msgs: Sequence[MessageExt], context: ConsumeConcurrentlyContext
    ) -> ConsumeConcurrentlyStatus:
        """Apply the messages on their `connection`; whatever else than CONSUME_SUCCESS it does, they come again."""


class MessageListenerOrderly(ABC):
    """Handles messages of one key in order, and many keys at once."""

    @abstractmethod
    def consume_message(
        self, msgs: Sequence[MessageExt], context: ConsumeOrderlyContext
    ) -> ConsumeOrderlyStatus:
        """Apply the messages on their `connection`; whatever else than SUCCESS it does, they come again first."""


class ListenerOf4x:
    """Calls a listener of RocketMQ 4.x as a batch listener of `outbox.inbox`."""

    def __init__(self, listener: MessageListenerConcurrently | MessageListenerOrderly) -> None:
        self._listener = listener

    def __call__(self, conn: Any, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        """Run the listener, and return a result for each message.

        Raises:
            ListenerError: it returned something else than a status of its kind.
        """
        queue = MessageQueue(messages[0].topic, messages[0].partition)
        msgs = [MessageExt(message, conn) for message in messages]
        done = 0
        if isinstance(self._listener, MessageListenerOrderly):
            status = cast("object", self._listener.consume_message(msgs, ConsumeOrderlyContext(queue)))
            kind: type[Enum] = ConsumeOrderlyStatus
            if status is ConsumeOrderlyStatus.SUCCESS:
                done = len(msgs)
        else:
            context = ConsumeConcurrentlyContext(queue)
            status = cast("object", self._listener.consume_message(msgs, context))
            kind = ConsumeConcurrentlyStatus
            if status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
                done = min(max(context.ack_index + 1, 0), len(msgs))
        if not isinstance(status, kind):
            name = type(self._listener).__qualname__
            raise ListenerError(
                f"{name}.consume_message returned {type(status).__name__}; allowed: a {kind.__name__}"
            )
        return [ConsumeResult.SUCCESS] * done + [ConsumeResult.RECONSUME_LATER] * (len(msgs) - done)
