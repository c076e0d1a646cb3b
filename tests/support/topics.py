"""Topics for tests: new names on a real broker, usable when they are handed out."""

from __future__ import annotations

import time
import uuid

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

LIMIT = 15.0
"""Seconds for the broker to make a topic known."""


class Topics:
    """Makes topics on one broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        """Take the broker's address."""
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    @staticmethod
    def new_name() -> str:
        """Answer a name that no topic has."""
        return f"test-{uuid.uuid4().hex[:16]}"

    def make(self, partitions: int = 4, **settings: str) -> str:
        """Create a topic of a new name, with settings as `max_message_bytes="1000"`; answer the name.

        It returns when every partition has a leader: from then on it can be produced to and read.
        """
        name = self.new_name()
        self.make_named(name, partitions, **settings)
        return name

    def make_named(self, name: str, partitions: int, **settings: str) -> None:
        """Create a topic of this name, as `make` does.

        It keeps its records unless told otherwise: tests write some with a time of long ago, which the broker would
        delete in one of its checks, every five minutes.
        """
        settings = {"retention_ms": "-1", **settings}
        config = {key.replace("_", "."): value for key, value in settings.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        self._admin.create_topics([topic])[name].result(LIMIT)
        deadline = time.monotonic() + LIMIT
        while not self._serves(name, partitions):
            if time.monotonic() > deadline:
                raise TimeoutError(f"topic {name} has no leaders after {LIMIT} s")

    def _serves(self, name: str, partitions: int) -> bool:
        known = self._admin.list_topics(name, timeout=LIMIT).topics[name]
        led = [partition for partition in known.partitions.values() if partition.leader >= 0]
        return known.error is None and len(led) == partitions
