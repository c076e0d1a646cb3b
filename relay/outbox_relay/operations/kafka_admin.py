"""The admin client of a command."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.publisher.kafka import KafkaSettingError, new_admin, producer_settings, readable


def admin_of_command(bootstrap_servers: str, extra: Mapping[str, str] | None = None) -> AdminClient:
    """Make an admin client that prints nothing by itself.

    Args:
        bootstrap_servers: the brokers.
        extra: settings of librdkafka.

    Raises:
        TopicError: a setting is refused.
    """
    # librdkafka would print each failed connection; ours is reported once, by the error of the request.
    logging.getLogger("outbox.librdkafka").addHandler(logging.NullHandler())
    try:
        return new_admin(producer_settings(bootstrap_servers, extra))
    except KafkaSettingError as error:
        raise TopicError(str(error)) from None
    except KafkaException as error:
        raise TopicError(f"--kafka-config: {readable(error)}") from None
