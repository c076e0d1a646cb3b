"""A broker answers one topic with an error that the relay does not know: whether it took the message is open."""

from __future__ import annotations

import time
from functools import partial

import pytest

from outbox_relay.publisher.errors import REFUSED
from outbox_relay.publisher.hands import wires
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"
PARKED = (
    "SELECT count(*) FROM outbox.parked_key WHERE is_topic AND topic = %s AND error LIKE 'INVALID_RECORD:%%'"
)
BOUND_S = 4.0
"""Less than the pause of a producer that fails again and again."""


def is_published(conn: Connection, topic: str, count: int) -> bool:
    return conn.execute(PUBLISHED, [topic]).fetchone() == (count,)


@pytest.mark.usefixtures("may_not_describe_configs")
def test_a_topic_that_fails_again_and_again_is_held_alone(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wires, "REFUSED", REFUSED - {"INVALID_RECORD"})
    well, sick = make_topic(), make_topic(partitions=1, cleanup_policy="compact")
    with RelayThread(database, bootstrap_servers) as relay, connect(database) as conn:
        for version in range(20):
            if version == 1:
                insert(conn, sick, None, b"no key")
            began = time.monotonic()
            insert(conn, well, "k", f"k:{version}")
            wait_until(partial(is_published, conn, well, version + 1), "others flow")
            assert not version or time.monotonic() - began < BOUND_S
            if version == 10:
                wait_until(lambda: conn.execute(PARKED, [sick]).fetchone() == (1,), "the topic is held")
        assert len(relay.find("delivery failed")) <= 2
    found = compare(read_topic(bootstrap_servers, well), [("k", version) for version in range(20)])
    assert not found.broken
    assert found.duplicate_records <= 2
