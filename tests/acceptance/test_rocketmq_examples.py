"""RocketMQ's own examples, with real processes from the producer to a stock consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.ordered_producer import TAGS
from tests.checker import read_topic
from tests.child import run
from tests.relay_process import RelayProcess
from tests.writing import connect, wait_published

HERE = Path(__file__).parent


@pytest.mark.feature("S-39", "S-101", "S-104")
def test_the_steps_of_each_order_arrive_in_one_partition_in_order(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with RelayProcess(database, bootstrap_servers) as relay, connect(database) as conn:
        run(HERE / "ordered_producer.py", database, topic)
        wait_published(conn)
        relay.stop()
    records = read_topic(bootstrap_servers, topic)
    assert len(records) == 20
    for order in range(1, 5):
        steps = [r for r in records if r.value is not None and f"订单 {order}:" in r.value.decode()]
        assert {record.partition for record in steps} == {order % 4}
        assert [record.header("outbox-tags") for record in steps] == list(TAGS)
        assert [record.header("outbox-keys") for record in steps] == [
            f"uniqueId:{i}" for i in range(order * 5, order * 5 + 5)
        ]
        assert [record.value for record in steps] == [
            f"Hello RocketMQ 订单 {order}: {tag}".encode() for tag in TAGS
        ]
    assert len({record.message_id for record in records}) == 20
