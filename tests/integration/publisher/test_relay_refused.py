"""A message that only the broker can refuse: a compacted topic takes no record without a key."""

from __future__ import annotations

import pytest

from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, keys_of_lanes, stopped, wait_published
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic


@pytest.mark.feature("S-38")
def test_a_refused_message_without_a_key_holds_up_nothing(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    compacted, healthy = make_topic(partitions=1, cleanup_policy="compact"), make_topic(partitions=1)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        (key,) = keys_of_lanes(conn, healthy, 5)
        refused = insert(conn, compacted, None, b"no key", lane=2)
        event = relay.wait_for("key parked", lane=2)
        assert event["message_id"] == refused
        assert "INVALID_RECORD" in event["reason"]
        insert(conn, healthy, key, b"flows")
        (behind,) = keys_of_lanes(conn, compacted, 2)
        insert(conn, compacted, behind, b"behind it")
        wait_published(conn)
        assert not stopped(conn)
        assert len(relay.find("delivery failed")) <= 2, "once as it came, once by itself"
    assert [record.value for record in read_topic(bootstrap_servers, healthy)] == [b"flows"]
    assert [record.value for record in read_topic(bootstrap_servers, compacted)] == [b"behind it"]
