"""A message that only the broker can refuse: a compacted topic takes no record without a key."""

from __future__ import annotations

import pytest

from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, keys_of_lanes
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


@pytest.mark.feature("S-38")
def test_a_refused_message_with_nothing_behind_it_stops_its_lane_only(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    compacted, healthy = make_topic(partitions=1, cleanup_policy="compact"), make_topic(partitions=1)
    with connect(database) as conn, RelayThread(database, bootstrap_servers) as relay:
        (key,) = keys_of_lanes(conn, healthy, 5)
        refused = insert(conn, compacted, None, b"no key", lane=2)
        event = relay.wait_for("lane stopped", lane=2)
        assert event["message_id"] == refused
        assert "INVALID_RECORD" in event["reason"]
        insert(conn, healthy, key, b"flows")
        wait_until(lambda: read_topic(bootstrap_servers, healthy), "the other lanes flow")
        assert len(relay.find("delivery failed")) <= 4, (
            "once as it came, once by itself, for the first and the second try"
        )
    assert read_topic(bootstrap_servers, compacted) == []
