"""Clients of Kafka that are done with: how one is recognised that finds no broker, and closed without a wait.

Closing one waits until Kafka has taken the offsets that were handed over, and for a coordinator that may be away,
silent, or not to be found. PostgreSQL has the positions, so nothing is lost if a process ends before that.
"""

from __future__ import annotations

import logging
import threading

from confluent_kafka import Consumer, KafkaException

log = logging.getLogger("outbox.inbox")
PATIENCE = 5.0
"""Seconds to wait for Kafka at the end: it takes the last offsets, and hears that the member leaves its group."""
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


def close_in_time(client: Consumer, group: str) -> None:
    """Close a client at the end of its member, and wait for some seconds at most."""
    thread = close_apart(client)
    thread.join(PATIENCE)
    if thread.is_alive():
        log.warning("group %s: Kafka does not reply, so this member ends without it", group)


def is_closing() -> bool:
    """Return whether a callback comes from a client that is done with: the thread that closes it runs it."""
    return threading.current_thread().name == _CLOSING
