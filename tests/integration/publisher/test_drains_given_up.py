"""Pages of drains that are given up on the wire: what they hold back, and what Kafka acknowledged of them."""

from __future__ import annotations

import pytest
from outbox_relay.publisher.batch import Slot

from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.topic_parking import LANES, TopicParking

LANE = LANES[0]
LOST = Unpublishable("LEADER_NOT_AVAILABLE", "lost again")
ORPHANS = """
    SELECT w.id, w.reason, w.parked FROM outbox.waiting w
    WHERE w.parked IS NOT NULL AND NOT EXISTS (SELECT FROM outbox.parked_key k WHERE k.number = w.parked)
"""
DOUBTFUL = "SELECT in_doubt FROM outbox.waiting ORDER BY place"
LIMIT = "UPDATE outbox.topic SET max_message_bytes = %s WHERE name = %s"
REQUEST = "UPDATE outbox.parked_key SET requested_at = clock_timestamp()"


def give_up_a_page(session: Session, topics: TopicParking, reason: Unpublishable, *, learned: int) -> None:
    """Let the topic go on, and give up the second page of its drain, of which so many deliveries were learned."""
    make = session._publisher._new_slot

    def hard_of_hearing(slots: dict[tuple[str, int], Slot], name: str, partition: int) -> Slot:
        slot = make(slots, name, partition)
        if name == topics.sick and session._drain is not None and session._drain.pages:
            learn = slot.delivered
            slot.delivered = lambda error, message: (
                None if len(slot.offsets) == learned else learn(error, message)
            )
        return slot

    session._publisher._new_slot = hard_of_hearing  # type: ignore[method-assign]
    topics.resume()
    turn_until(session, lambda: LANE in session._publisher.aside, "the second page of the drain waits")
    session._give_up(LANE, reason)


@pytest.mark.parametrize("code", ["LEADER_NOT_AVAILABLE", "PARTITION_UNAVAILABLE"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_key_that_was_parked_by_a_page_that_is_given_up_is_drained_in_order(
    database: str, bootstrap_servers: str, code: str, *, dies: bool
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=False) as session:
            topics = TopicParking(conn, bootstrap_servers)
            bad, third = topics.keys[topics.sick][0], topics.another_key(LANE)
            topics.send()
            topics.settle(session)
            conn.execute(LIMIT, [1_000, topics.sick])
            topics.pause()
            topics.follow(session)
            insert(conn, topics.sick, third, f"{third}:0", lane=LANE)
            insert(conn, topics.sick, bad, f"{bad}:1", lane=LANE)
            insert(conn, topics.sick, bad, f"{bad}:2", lane=LANE, headers='{"much": "%s"}' % ("x" * 2_000))
            insert(conn, topics.sick, bad, f"{bad}:3", lane=LANE)
            topics.settle(session)
            assert topics.reasons == ["parked"] * 4
            give_up_a_page(session, topics, Unpublishable(code, "lost again"), learned=0)
            assert topics.of_keys == 1
            assert conn.execute(ORPHANS).fetchall() == []
            if not dies:
                topics.drain(session)
                assert conn.execute(ORPHANS).fetchall() == []
                held = session._parked.held
                assert held.messages_of[LANE, topics.sick] == 2, (
                    "what is in front is published with the topic"
                )
                assert held.keys_of[LANE, topics.sick] == 1
        insert(conn, topics.sick, bad, f"{bad}:4", lane=LANE)
        conn.execute(LIMIT, [1_000_000, topics.sick])
        with relay_session(database, bootstrap_servers) as successor:
            topics.settle(successor)
            topics.drain(successor)
            conn.execute(REQUEST)
            turn_until(successor, lambda: not topics.of_keys, "the key is drained")
            topics.settle(successor)
        assert topics.reasons == []
    values = [one.value for one in read_topic(bootstrap_servers, topics.sick) if one.key == bad.encode()]
    assert list(dict.fromkeys(values)) == [f"{bad}:{version}".encode() for version in range(5)]


def test_what_is_acknowledged_of_a_page_that_is_given_up_comes_once(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        third = topics.another_key(LANE)
        topics.send()
        topics.settle(session)
        topics.pause()
        topics.follow(session)
        for version in range(5):
            insert(conn, topics.sick, third, f"{third}:{version}", lane=LANE)
        topics.settle(session)
        give_up_a_page(session, topics, LOST, learned=2)
        assert topics.reasons == ["parked"] * 2, (
            "the first page, and two messages of the second, are recorded"
        )
        assert conn.execute(DOUBTFUL).fetchall() == [(True,)] * 2
        topics.drain(session)
        assert topics.reasons == []
        assert not session._parked.held.messages_of
    values = [one.value for one in read_topic(bootstrap_servers, topics.sick) if one.key == third.encode()]
    twice = [3, 4, 3, 4]
    assert values == [f"{third}:{version}".encode() for version in [0, 1, 2, *twice]]
