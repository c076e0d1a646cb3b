"""RocketMQ's names for consumers: 4.x's `DefaultMQPushConsumer`, and 5.x's builders of push and simple consumers.

Both run `outbox.inbox.PushConsumer`: the effect of each message is applied once, and a message that fails holds up its
own key only. Needs the extra `consumer` (confluent-kafka). `import outbox.rocketmq` imports nothing of this.
"""

from outbox.inbox import ConsumeResult, ReconsumeLater
from outbox.rocketmq.consumer.builder import (
    ClientConfiguration,
    FilterExpression,
    FilterExpressionType,
    PushConsumerBuilder,
    StaticSessionCredentialsProvider,
)
from outbox.rocketmq.consumer.mq_listeners import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    MessageListenerConcurrently,
    MessageListenerOrderly,
)
from outbox.rocketmq.consumer.mq_push_consumer import ConsumeFromWhere, DefaultMQPushConsumer, MessageModel
from outbox.rocketmq.consumer.received import MessageExt
from outbox.rocketmq.consumer.simple import ReceivedView, SimpleConsumer, SimpleConsumerBuilder

__all__ = [
    "ClientConfiguration",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "DefaultMQPushConsumer",
    "FilterExpression",
    "FilterExpressionType",
    "MessageExt",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "MessageModel",
    "PushConsumerBuilder",
    "ReceivedView",
    "ReconsumeLater",
    "SimpleConsumer",
    "SimpleConsumerBuilder",
    "StaticSessionCredentialsProvider",
]
