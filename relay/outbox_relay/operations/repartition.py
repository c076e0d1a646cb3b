"""Moves a topic over to more partitions while messages flow, without changing the order of a key.

The registry is changed in one transaction; each relay uses the new count when nothing of the topic is unacknowledged in
it, and then states so in its lease (publisher/core/core.py has the rules, and what happens when a relay dies or
pauses in between). This module checks and changes. Between any two of its lines:

- The process dies before the change: nothing has happened. After it: the relays move the topic all the same; the same
  command again finds the registry changed, and waits for those that have not stated it.
- Two of these commands, or one and `outbox topic alter`: each compares the topic's row under its lock with what it had
  read. The second one is refused, or finds the first one's count.
"""

from __future__ import annotations

from typing import Any

import psycopg

from outbox.partitioning.selectors import BUILT_IN
from outbox_relay.operations import topics
from outbox_relay.operations.kafka_topics import KafkaTopic
from outbox_relay.operations.topic_errors import TopicError
from outbox_relay.operations.topics import Registered
from outbox_relay.text.formatting import many


def require_possible(old: Registered, found: KafkaTopic, partitions: int) -> None:
    """Refuse a change that would not keep the order of the topic's keys, or that Kafka has no partitions for.

    Raises:
        TopicError: with what is wrong, and what to do.
    """
    name = old.name
    if old.selector is not None and old.selector not in BUILT_IN:
        raise TopicError(
            f"topic {name!r} has the custom selector {old.selector!r}: producers choose the partition when they send, "
            "by a count that they know for up to a minute, so no relay can keep a key's order between two counts\n"
            "stop the producers of this topic, wait until `outbox status` shows no backlog for it and its consumers "
            f"have read all, then: outbox topic alter {name} --partitions {partitions} --move-keys"
        )
    if partitions < old.partitions:
        more = f"up to the {found.partitions} that Kafka has"
        if found.partitions <= old.partitions:
            more = "which Kafka must have first"
        raise TopicError(
            f"--to {partitions}: topic {name!r} is pinned to {many(old.partitions, 'partition')}; expected more, "
            f"{more}\nto go down without order: outbox topic alter {name} --help"
        )
    if partitions > found.partitions:
        raise TopicError(
            f"--to {partitions}: Kafka's topic {name!r} has {many(found.partitions, 'partition')}\n"
            f"add partitions there first: kafka-topics.sh --alter --topic {name} --partitions {partitions}"
        )


def switch(conn: psycopg.Connection[Any], old: Registered, partitions: int) -> Registered:
    """Change the count, unless the topic was changed since it was read; the same count again changes nothing.

    Raises:
        TopicError: it was changed meanwhile.
    """
    if old.partitions == partitions:
        return old
    return topics.change(
        conn,
        old,
        message_type=old.message_type,
        partitions=partitions,
        selector=old.selector,
        max_message_bytes=old.max_message_bytes,
    )
