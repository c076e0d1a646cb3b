"""A topic without trouble of its own: whatever others do, its messages are published soon, once and in order."""

from __future__ import annotations

from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, insert, keys_of_lanes
from tests.support.waiting import wait_until

BOUND_S = 10.0
"""For a machine that is busy: a tenth of it is measured on one that is not."""
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"


class Bystander:
    """A topic with keys in lanes, and how soon its messages are published."""

    def __init__(self, conn: Connection, topic: str, servers: str) -> None:
        self._conn, self._topic, self._servers = conn, topic, servers
        self._keys = keys_of_lanes(conn, topic, *range(8))
        self._sent: list[tuple[str, int]] = []

    def is_published(self) -> bool:
        """Whether all that was sent is published."""
        return self._conn.execute(PUBLISHED, [self._topic]).fetchone() == (len(self._sent),)

    def flows(self, *, without: int | None = None) -> None:
        """Send a message in each lane but one, and insist that all are published within the bound."""
        version = len(self._sent)
        for lane, key in enumerate(self._keys):
            if lane != without:
                insert(self._conn, self._topic, key, f"{key}:{version}")
                self._sent.append((key, version))
        wait_until(self.is_published, "the other topic flows", seconds=BOUND_S)

    def check(self) -> None:
        """Check that each came once, in order."""
        found = compare(read_topic(self._servers, self._topic), self._sent)
        assert not found.broken
        assert found.duplicate_records == 0
