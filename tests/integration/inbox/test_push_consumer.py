"""A consumer applies the effect of each message once, whatever is delivered again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox import Message, Outbox
from outbox.inbox import ConsumedMessage, ConsumeResult
from tests.support.inbox_stage import FAST, Connection, InboxStage
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until


@pytest.mark.feature("S-93")
def test_each_message_is_applied_once_and_the_offsets_follow(inbox: InboxStage, topic: str) -> None:
    ids = inbox.produce_numbered(topic, 40)
    with inbox.consumer(topic):
        inbox.wait_applied(40)
    assert sorted(inbox.applied()) == sorted(ids)
    assert inbox.count("outbox.inbox") == 40
    assert [inbox.committed(topic, part) for part in range(4)] == [12, 12, 8, 8]
    inbox.produce_numbered(topic, 4, start=40)
    with inbox.consumer(topic):
        inbox.wait_applied(44)
    assert inbox.count("applied") == 44


@pytest.mark.feature("H-06")
def test_a_listener_is_given_all_of_a_message(inbox: InboxStage, topic: str) -> None:
    """Sent by the library, published by the relay, and tried twice."""
    seen: list[ConsumedMessage] = []

    def listen(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message)
        return ConsumeResult.SUCCESS if message.reconsume_times else ConsumeResult.RECONSUME_LATER

    message = Message(
        topic, "o-7", b"seven", headers={"region": "north"}, tags=["paid"], index_keys=["n-1", "n-2"]
    )
    with inbox.conn.transaction():
        sent = Outbox(producer_group="shop").send(inbox.conn, message)
    with (
        RelayProcess(inbox.dsn, inbox.bootstrap_servers),
        inbox.consumer(topic, listen, delays=FAST),
    ):
        wait_until(lambda: len(seen) == 2, "it is tried again")
    first, second = seen
    assert (first.reconsume_times, second.reconsume_times) == (0, 1)
    row = inbox.conn.execute(
        'SELECT message_id, topic, partition, "offset", born_at FROM outbox.message_status WHERE id = %s',
        [sent.id],
    ).fetchone()
    for given in seen:
        told = (given.message_id, given.topic, given.partition, given.offset)
        assert row is not None
        assert told == row[:4]
        assert abs(given.born_at - row[4]) < timedelta(milliseconds=1), "headers have milliseconds"
        assert given.published_at >= given.born_at
        assert (given.key, given.body, given.header("region")) == (b"o-7", b"seven", b"north")
        assert (given.tags, given.keys, given.deliver_at) == (("paid",), ("n-1", "n-2"), None)
