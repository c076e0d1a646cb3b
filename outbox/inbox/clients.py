"""Clients of Kafka that are done with: how one is recognised that finds no broker, and closed without a wait.

Closing one may wait for a coordinator that is away, silent, or never found. PostgreSQL has the positions, so nothing
is lost if a process ends before that.
"""

from __future__ import annotations

import logging
import threading

from confluent_kafka import Consumer, KafkaException

log = logging.getLogger("outbox.inbox")
_CLOSING = "outbox-consumer-closing"
_REPLY_TIME = 1.0
"""Seconds for a reply to the member's own client, which holds up its loop; Kafka has just replied to another one."""


def finds_no_broker(client: Consumer, topic: str) -> bool:
    """Return whether a client has no broker left, though Kafka replies to others."""
    try:
        return not client.list_topics(topic, timeout=_REPLY_TIME).brokers
    except KafkaException as error:
        log.debug("Kafka: %s", error)
        return True


def close_apart(client: Consumer) -> threading.Thread:
    """Close a client in a thread of its own, and return that; its callbacks are to be ignored from here on."""
    thread = threading.Thread(target=client.close, name=_CLOSING, daemon=True)
    thread.start()
    return thread


def is_closing() -> bool:
    """Return whether a callback comes from a client that is done with: the thread that closes it runs it."""
    return threading.current_thread().name == _CLOSING
