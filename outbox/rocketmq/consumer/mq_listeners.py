"""RocketMQ 4.x's listeners of consumers, what they return, and how `outbox.inbox` runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

from outbox.errors import ListenerError
from outbox.inbox import ConsumedMessage, ConsumeResult, ReconsumeLater
from outbox.inbox.delays import DELAY_LEVELS
from outbox.inbox.results import Consumed
from outbox.rocketmq.consumer.received import MessageExt
from outbox.rocketmq.results import MessageQueue

LONGEST_SUSPENSION = 30_000
"""RocketMQ's limit, in milliseconds."""


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
    delay_level_when_next_consume: int = 0
    """To be set for what is tried again: 0: after the group's delay; 1 to 18: after that of this level of RocketMQ's;
    -1: not at all, it is dead."""


@dataclass(slots=True)
class ConsumeOrderlyContext:
    """Where the messages come from, and when they are tried again."""

    message_queue: MessageQueue
    """That of the first message."""
    suspend_current_queue_time_millis: int = -1
    """To be set for what is tried again: 10 to 30,000 milliseconds; -1: after the group's delay."""


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

    def __call__(self, conn: Any, messages: list[ConsumedMessage]) -> list[Consumed]:
        """Run the listener, and return a result for each message.

        Raises:
            ListenerError: it returned something else than a status of its kind, or set a delay that is not allowed.
        """
        queue = MessageQueue(messages[0].topic, messages[0].partition)
        msgs = [MessageExt(message, conn) for message in messages]
        done = 0
        if isinstance(self._listener, MessageListenerOrderly):
            orderly = ConsumeOrderlyContext(queue)
            status = cast("object", self._listener.consume_message(msgs, orderly))
            kind: type[Enum] = ConsumeOrderlyStatus
            again = _suspended(orderly.suspend_current_queue_time_millis)
            if status is ConsumeOrderlyStatus.SUCCESS:
                done = len(msgs)
        else:
            context = ConsumeConcurrentlyContext(queue)
            status = cast("object", self._listener.consume_message(msgs, context))
            kind = ConsumeConcurrentlyStatus
            again = _at_level(context.delay_level_when_next_consume)
            if status is ConsumeConcurrentlyStatus.CONSUME_SUCCESS:
                done = min(max(context.ack_index + 1, 0), len(msgs))
        if not isinstance(status, kind):
            name = type(self._listener).__qualname__
            raise ListenerError(
                f"{name}.consume_message returned {type(status).__name__}; allowed: a {kind.__name__}"
            )
        return [ConsumeResult.SUCCESS] * done + [again] * (len(msgs) - done)


def _at_level(level: object) -> Consumed:
    """Return what a listener wants for what it has not done, by RocketMQ's delay level."""
    levels = DELAY_LEVELS.split()
    if type(level) is not int or not -1 <= level <= len(levels):
        raise ListenerError(
            f"delay_level_when_next_consume: {level!r}; allowed: 1 to {len(levels)}, 0 for the group's delays, or "
            "-1 for no other try"
        )
    if level <= 0:
        return ConsumeResult.DEAD if level else ConsumeResult.RECONSUME_LATER
    return ReconsumeLater(levels[level - 1])


def _suspended(milliseconds: object) -> Consumed:
    """Return what an orderly listener wants for what it has not done."""
    if milliseconds == -1:
        return ConsumeResult.RECONSUME_LATER
    if type(milliseconds) is not int or not 10 <= milliseconds <= LONGEST_SUSPENSION:
        raise ListenerError(
            f"suspend_current_queue_time_millis: {milliseconds!r}; allowed: 10 to {LONGEST_SUSPENSION} milliseconds, "
            "or -1 for the group's delays"
        )
    return ReconsumeLater(milliseconds / 1000)
