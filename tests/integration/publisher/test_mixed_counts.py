"""Lanes of two former owners that held partitions of one topic by different counts: no key overtakes itself."""

from __future__ import annotations

import pytest

from outbox.partitioning.lanes import lane_of
from outbox.partitioning.selectors import partition_of
from outbox_relay.publisher.hands.hold_rows import STEP
from tests.support.kafka_records import by_key_and_version, read_topic
from tests.support.plain_inserts import Connection, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic

BEFORE, AFTER = 2, 4
LANES = (3, 5)


def key_of(topic: str, lane: int) -> str:
    """Return a key of a lane that has another partition by each count."""
    return next(
        key
        for key in (f"k{number}" for number in range(1_000))
        if lane_of(topic, None, key.encode()) == lane and partition_of(None, key.encode(), AFTER) >= BEFORE
    )


def hold(
    conn: Connection, topic: str, key: str, lane: int, count: int, *, is_announced: bool = False
) -> None:
    """Let one message wait for the partition that its key has by a count."""
    message_id = insert(conn, topic, key, f"{key}:0", lane=lane)
    conn.execute(
        """
        WITH one AS (
            INSERT INTO outbox.waiting (id, message_id, reason, parked, place)
            SELECT id, message_id, 'parked', id + %(step)s, position FROM outbox.message WHERE message_id = %(message)s
            RETURNING id, place
        )
        INSERT INTO outbox.parked_key
            (number, lane, topic, partition, partitions, head, error, draining_at, draining_to)
        SELECT id + %(step)s, %(lane)s, %(topic)s, %(partition)s, %(count)s, id, 'PARTITION_UNAVAILABLE: why',
               CASE WHEN %(is_announced)s THEN now() END, CASE WHEN %(is_announced)s THEN place END
        FROM one
        """,
        {
            "step": STEP, "message": message_id, "lane": lane, "topic": topic, "count": count,
            "partition": partition_of(None, key.encode(), count), "is_announced": is_announced,
        },
    )  # fmt: skip


@pytest.mark.parametrize("announced", LANES)
def test_a_topic_whose_partitions_were_held_by_two_counts_waits_as_a_whole(
    conn: Connection, database: str, bootstrap_servers: str, make_topic: MakeTopic, announced: int
) -> None:
    topic, other = make_topic(AFTER, message_timestamp_type="LogAppendTime"), make_topic(1)
    keys = {lane: key_of(topic, lane) for lane in LANES}
    for lane, count in zip(LANES, (BEFORE, AFTER), strict=True):
        hold(conn, topic, keys[lane], lane, count, is_announced=lane == announced)
    for lane, key in keys.items():
        insert(conn, topic, key, f"{key}:1", lane=lane)
    insert(conn, other, "k", "k:0")
    with relay_session(database, bootstrap_servers) as session:
        turn_until(session, lambda: session.counts.recorded == 5, "all are published, and nothing is held")
    records = sorted(read_topic(bootstrap_servers, topic), key=lambda one: (one.timestamp, one.offset))
    for key in keys.values():
        of_key = [one for one in records if one.key == key.encode()]
        assert [by_key_and_version(one)[1] for one in of_key] == [0, 1]
        assert {one.partition for one in of_key} == {partition_of(None, key.encode(), AFTER)}
    assert len(read_topic(bootstrap_servers, other)) == 1
