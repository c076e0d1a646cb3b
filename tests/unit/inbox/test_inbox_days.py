"""Days of the inbox: which cluster a topic is of."""

from __future__ import annotations

import pytest

from outbox_relay.operations.kafka_logs import InboxTopic


@pytest.mark.parametrize("topic_id", ["lvkiT58wQ9K", "H2Kg/1v1kQ86", "a+b/c/d"])
def test_ids_of_topics_may_contain_slashes(topic_id: str) -> None:
    topic = InboxTopic(1, "orders", f"d-WnLEMISXi1CFVSJoUqdQ/{topic_id}")
    assert topic.cluster == "d-WnLEMISXi1CFVSJoUqdQ"
    assert topic.id_in(topic.cluster) == topic_id
    assert topic.id_in("d-WnLEMISXi1CFVSJoUqd") is None
