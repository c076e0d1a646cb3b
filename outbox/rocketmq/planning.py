"""Which partition a message will go to, as far as that is known before the relay publishes it."""

from __future__ import annotations

from outbox.message import Message
from outbox.operations.sender import Sender
from outbox.operations.topics import Topic
from outbox.partitioning.selectors import HASHES, MODULO, partition_of
from outbox.records import HalfMessage
from outbox.rocketmq.results import MessageQueue

_BY_KEY = (None, MODULO, *HASHES)


def planned(sender: Sender, message: Message, half: HalfMessage) -> MessageQueue:
    """The message's queue: explicit, chosen by a custom selector, or by its order key over the topic's pinned count.

    It never asks the database: a topic that is not registered, or not remembered, gives None.
    """
    if half.queue is not None:
        return MessageQueue(half.topic, half.queue)
    topic = _remembered(sender, half.topic)
    if topic is None or message.arg_bytes is None:
        return MessageQueue(half.topic, None)
    selector = message.selector or topic.selector
    if selector not in _BY_KEY:
        return MessageQueue(half.topic, None)
    return MessageQueue(half.topic, partition_of(selector, message.arg_bytes, topic.partitions))


def _remembered(sender: Sender, name: str) -> Topic | None:
    """The topic's registration, if looking it up takes no statement."""
    lookup = sender.registry.lookup((name,), half=True)
    try:
        next(lookup)
    except StopIteration as known:
        found: dict[str, Topic | None] = known.value
        return found[name]
    lookup.close()
    return None
