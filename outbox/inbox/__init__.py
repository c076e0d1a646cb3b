"""Consumers that apply each message once: `PushConsumer`, and what its listeners get and return.

Needs the extra `consumer` (confluent-kafka). `import outbox` imports nothing of this.
"""

from outbox.inbox.consumer import PushConsumer
from outbox.inbox.core.partitions import Limits
from outbox.inbox.delays import DelaySchedule
from outbox.inbox.header_filters import HeaderFilter
from outbox.inbox.messages import ConsumedMessage
from outbox.inbox.pauses import pause_group, resume_group
from outbox.inbox.results import ConsumeResult, ReconsumeLater
from outbox.inbox.settings import ConsumerSettings
from outbox.inbox.starts import FIRST, LAST, ConsumeFrom
from outbox.inbox.tags import TagExpression
from outbox.inbox.vitals import ConsumerVitals, PartitionVitals

__all__ = [
    "FIRST",
    "LAST",
    "ConsumeFrom",
    "ConsumeResult",
    "ConsumedMessage",
    "ConsumerSettings",
    "ConsumerVitals",
    "DelaySchedule",
    "HeaderFilter",
    "Limits",
    "PartitionVitals",
    "PushConsumer",
    "ReconsumeLater",
    "TagExpression",
    "pause_group",
    "resume_group",
]
