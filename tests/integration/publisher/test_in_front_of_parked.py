"""A message that waits for its topic, in front of one that parked their key: it is sound, and waits for no operator.

Schedule: a message is on the wire when the next one of its key fails, and parks the key. The partition loses its
leader, and the topic is parked with what is not acknowledged. When it goes on, its drain publishes what is in front of
all that waits for the key. In the tests all of it arrives in Kafka, and no acknowledgement is learned: so each such
message comes a second time, and first appearances show the order.
"""

from __future__ import annotations

import pytest

from outbox_relay.publisher import overdue
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.session import Session
from tests.support.deliveries import learn_nothing_of
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.topic_parking import LANES, TopicParking

LANE = LANES[0]
LEADERLESS = Unpublishable("LEADER_NOT_AVAILABLE", "no leader")
LIMIT = "UPDATE outbox.topic SET max_message_bytes = %s WHERE name = %s"
REQUEST = "UPDATE outbox.parked_key SET requested_at = clock_timestamp()"


def long(length: int) -> str:
    return '{"much": "%s"}' % ("x" * length)


def lose_the_leader(session: Session, topics: TopicParking, sent: int, *, limit: int) -> str:
    """Send so many messages of one key, and a longer one that fails behind them, and lose the partition's leader."""
    conn, key = topics.conn, topics.keys[topics.sick][0]
    learn_nothing_of(session, topics.sick)
    with pytest.MonkeyPatch.context() as patience:
        patience.setattr(overdue, "LATE_S", 1_000.0)
        for version in range(sent):
            insert(conn, topics.sick, key, f"{key}:{version}", headers=None if version else long(1_000))
        turn_until(session, lambda: session.unsettled == sent, "they are on the wire")
        insert(conn, topics.sick, key, f"{key}:{sent}", headers=long(5_000))
        conn.execute(LIMIT, [limit, topics.sick])
        session._publisher.topics.doubt(topics.sick)
        turn_until(session, lambda: bool(session._parked.held.keys), "the key is parked")
    turn_until(session, lambda: LANE in session._publisher.aside, "the lane waits")
    insert(conn, topics.sick, key, f"{key}:{sent + 1}")
    session._give_up(LANE, LEADERLESS)
    assert topics.reasons == ["parked"] * sent + ["failed"]
    return key


def values_of(topics: TopicParking, key: str) -> list[str]:
    found = [one.value for one in read_topic(topics.servers, topics.sick) if one.key == key.encode()]
    return [value.decode().partition(":")[2] for value in dict.fromkeys(found) if value is not None]


def drain_key(conn: Connection, session: Session, topics: TopicParking) -> None:
    conn.execute(LIMIT, [1_000_000, topics.sick])
    conn.execute(REQUEST)
    turn_until(session, lambda: not topics.of_keys, "the key is drained")
    topics.settle(session)
    assert topics.reasons == []
    assert session._parked.held.is_empty
    assert not session._parked.held.first_of


@pytest.mark.parametrize("dies", [False, True])
def test_a_message_in_front_of_one_that_parked_its_key_is_published_with_its_topic(
    database: str, bootstrap_servers: str, *, dies: bool
) -> None:
    with connect(database) as conn:
        topics = TopicParking(conn, bootstrap_servers)
        with relay_session(database, bootstrap_servers, clean=False) as session:
            key = lose_the_leader(session, topics, 2, limit=3_000)
            if not dies:
                topics.drain(session)
                assert topics.reasons == ["failed", "held"]
                drain_key(conn, session, topics)
        if dies:
            with relay_session(database, bootstrap_servers) as successor:
                topics.settle(successor)
                topics.drain(successor)
                assert topics.reasons == ["failed", "held"]
                drain_key(conn, successor, topics)
    assert values_of(topics, key) == ["0", "1", "2", "3"]


def test_one_in_front_that_fails_itself_joins_its_key_and_holds_what_is_between(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        key = lose_the_leader(session, topics, 2, limit=3_000)
        conn.execute(LIMIT, [500, topics.sick])
        topics.drain(session)
        assert topics.reasons == ["held", "held", "failed", "held"]
        assert topics.of_keys == 1
        drain_key(conn, session, topics)
    assert values_of(topics, key) == ["0", "1", "2", "3"]


def test_a_topic_that_a_later_batch_has_parked_takes_what_an_earlier_one_waits_for(
    database: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two batches are recorded apart, because one publication holds so many messages only."""
    monkeypatch.setattr("outbox_relay.publisher.recorder.TOGETHER", 0)
    monkeypatch.setattr(overdue, "LATE_S", 1_000.0)
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send()
        topics.settle(session)
        learn_nothing_of(session, topics.sick)
        key = topics.keys[topics.sick][0]
        insert(conn, topics.sick, key, f"{key}:1")
        turn_until(session, lambda: session.unsettled == 1, "it is on the wire")
        topics.pause()
        turn_until(session, lambda: bool(session._publisher.topics._pausing), "the relay knows of the pause")
        insert(conn, topics.sick, key, f"{key}:2")
        turn_until(session, lambda: (LANE, topics.sick) in session._parked.held.topics, "the topic is parked")
        assert topics.parked == [], "but not recorded"
        monkeypatch.setattr(overdue, "LATE_S", 0.0)
        turn_until(session, lambda: LANE in session._publisher.aside, "the lane waits")
        session._give_up(LANE, LEADERLESS)
        assert topics.reasons == ["parked"] * 2
        topics.resume()
        topics.drain(session)
    assert values_of(topics, key) == ["0", "1", "2"]


def test_what_parks_a_key_is_logged_once_also_where_its_lane_gives_up(
    database: str, bootstrap_servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        caplog.clear()
        lose_the_leader(session, topics, 1, limit=3_000)
        lines = [record.getMessage() for record in caplog.records]
        assert sorted(line for line in lines if line.endswith("parked")) == ["key parked", "topic parked"]
        topics.drain(session)
