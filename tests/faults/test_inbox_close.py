"""A member ends in time while Kafka is away or stands still: an orchestrator kills it after 30 s.

PostgreSQL has the positions. Its partitions are another member's after its session, as after a kill.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from time import monotonic

import pytest

from outbox_local.stack.api import Stack
from tests.support.inbox_stage import InboxStage
from tests.support.waiting import wait_until

BOUND_S = 20.0
"""It waits 5 s for Kafka; the rest is for a busy machine."""


@pytest.mark.feature("S-96")
@pytest.mark.parametrize("fault", ["pause_kafka", "kill_kafka"])
def test_a_member_ends_in_time_while_kafka_does_not_reply(
    private_stack: Stack, private_database: str, private_topic: str, fault: str
) -> None:
    begin: Callable[[], None] = getattr(private_stack, fault)
    end = private_stack.resume_kafka if fault == "pause_kafka" else private_stack.start_kafka
    topic = private_topic
    with closing(InboxStage(private_database, private_stack.bootstrap_servers)) as inbox:
        inbox.produce_numbered(topic, 40)

        def position() -> int:
            [(done,)] = inbox.conn.execute("SELECT sum(next_off) FROM outbox.inbox_position").fetchall()
            return int(done or 0)

        # With the usual session, so that the member still has its partitions.
        with inbox.consumer(topic, kafka={"bootstrap.servers": inbox.bootstrap_servers}) as member:
            inbox.wait_applied(40)
            wait_until(lambda: position() == 40, "positions are stored")
            begin()
            try:
                since = monotonic()
                member.close()
                took = monotonic() - since
            finally:
                end()
        assert took < BOUND_S
        assert inbox.count("outbox.inbox_position", "reader IS NOT NULL") == 0, "it has given all back"
        inbox.produce_numbered(topic, 40, start=40)
        with inbox.consumer(topic):
            inbox.wait_applied(80)
        assert sorted(map(int, inbox.applied("body"))) == [*range(80)]
