"""A lane that waits for a partition without a leader: the topic waits, in doubt, and everything else goes on.

The messages arrive in Kafka, and what it says of that is not learned: so each of them comes a second time, which shows
that first appearances are in order. With a broker that is killed: tests/faults/test_relay_sick_partition.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

import pytest

from outbox_relay.operations import holds
from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.errors import Unpublishable
from outbox_relay.publisher.parked import KeyDrain
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.topic import Topic
from outbox_relay.publisher.topics import Found, Read
from tests.support.deliveries import learn_nothing_of
from tests.support.kafka_records import read_topic
from tests.support.parking import Parking, check, relay
from tests.support.plain_inserts import Connection, connect
from tests.support.relay_session import relay_session, turn_until
from tests.support.topic_parking import LANES, TopicParking

LEADERLESS = Unpublishable("LEADER_NOT_AVAILABLE", "no leader")
REQUESTED = "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NOT NULL"
DOUBTFUL = "SELECT in_doubt FROM outbox.waiting ORDER BY place"


@pytest.mark.parametrize("dies", ["never", "before the record", "after the record"])
def test_what_a_lane_waits_for_is_parked_in_doubt_and_the_rest_is_recorded(
    database: str, bootstrap_servers: str, dies: str
) -> None:
    with connect(database) as conn:
        with relay_session(database, bootstrap_servers, clean=dies == "never") as session:
            topics = TopicParking(conn, bootstrap_servers)
            topics.send(1)
            topics.settle(session)
            learn_nothing_of(session, topics.sick)
            topics.send(2)
            turn_until(session, lambda: set(session._publisher.aside) == set(LANES), "both lanes wait")
            deaf = session._publisher
            if dies != "before the record":
                for lane in LANES:
                    session._give_up(lane, LEADERLESS)
                assert [(lane, code) for lane, _, code in topics.parked] == [
                    (lane, LEADERLESS.code) for lane in LANES
                ]
                assert topics.reasons == ["parked"] * 4
                assert conn.execute(DOUBTFUL).fetchall() == [(True,)] * 4
                assert topics.is_published(topics.well, 6)
                assert not session.unsettled
                assert not session.stopped
            topics.send(1)
            if dies == "never":
                turn_until(session, lambda: topics.is_published(topics.well, 8), "the other topic flows")
                assert session._publisher is not deaf
                topics.drain(session)
        if dies != "never":
            with relay_session(database, bootstrap_servers) as successor:
                topics.settle(successor)
                topics.drain(successor)
        assert topics.reasons == []
    topics.check(topics.sick, range(4), repeated=True)
    topics.check(topics.well, range(4), repeated=dies == "before the record")


def list_leaders(session: Session, topic: str, *, none: bool) -> None:
    """Let Kafka's answers about a topic list no leader of its partition, or what they say themselves again."""
    book = session._publisher.topics
    for reads in (book, book._refresher):
        reads._read = partial(lost, reads._read, topic) if none else reads._read.args[0]  # type: ignore[attr-defined]


def lost(read: Read, topic: str, conn: Connection, names: Iterable[str]) -> Found:
    found = dict(read(conn, names))
    if isinstance(known := found.get(topic), Topic):
        found[topic] = replace(known, leaderless=frozenset((0,)))
    return found


def test_a_request_holds_up_no_lane_while_the_partition_has_no_leader(
    database: str, bootstrap_servers: str
) -> None:
    """Registering the topic asks for a drain in each of its lanes."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send(1)
        topics.settle(session)
        topics.pause()
        topics.follow(session)
        topics.send(2)
        topics.settle(session)
        list_leaders(session, topics.sick, none=True)
        topics.resume()
        topics.follow(session)
        (hold,) = holds.everything(conn, holds.HoldFilter(topic=topics.sick))
        conn.execute(holds.STATEMENTS["release"], {"numbers": hold.numbers})
        learn_nothing_of(session, topics.sick)
        turn_until(session, lambda: conn.execute(REQUESTED).fetchone() == (0,), "the requests are answered")
        assert not session.unsettled
        assert not session._publisher.aside
        assert [(lane, code) for lane, _, code in topics.parked] == [
            (lane, LEADERLESS.code) for lane in LANES
        ]
        assert topics.reasons == ["parked"] * 4
        del session._publisher._new_slot
        list_leaders(session, topics.sick, none=False)
        topics.drain(session)
    topics.check(topics.sick, range(3))


def test_a_drain_of_a_key_is_put_off_before_it_waits_for_a_lost_leader(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2)
        parking.repair()
        list_leaders(session, parking.topic, none=True)
        parking.request(session)
        turn_until(session, lambda: (3, parking.topic) in session._parked.held.topics, "its topic is parked")
        assert not session.unsettled
        assert not session._publisher.aside
        assert parking.reasons == ["failed", "held", "held"]
        assert parking.doubtful == [False] * 3
        list_leaders(session, parking.topic, none=False)
        parking.drain(session)
    check(bootstrap_servers, parking, 3, 0)


def test_a_key_that_is_drained_when_its_topic_loses_a_leader_keeps_its_request(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Its message is sound: it is drained after its topic, without being asked for again."""
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2)
        parking.repair()
        drains: list[Batch] = []
        note = session._note_drained

        def unlearned(drain: KeyDrain, part: KeyDrain, batch: Batch) -> None:
            if not drains:
                drains.append(batch)
                for slot in batch.slots.values():
                    slot.offsets = []
                session._set_aside({drain.lane})
            note(drain, part, batch)

        session._note_drained = unlearned
        parking.request(session)
        turn_until(session, lambda: 3 in session._publisher.aside, "the drain waits")
        session._give_up(3, LEADERLESS)
        assert (3, parking.topic) in session._parked.held.topics
        assert parking.reasons == ["failed", "held", "held"]
        assert parking.doubtful == [True, False, False]
        parking.send(parking.bad, 3)
        parking.send(parking.good, 0)
        parking.drain(session)
        assert not session._parked.held.messages_of[3, parking.topic]
    found = [record.value for record in read_topic(bootstrap_servers, parking.topic) if record.value]
    mine = [one for one in dict.fromkeys(found) if one.startswith(parking.bad.encode() + b":")]
    assert mine == [f"{parking.bad}:{version}".encode() for version in range(4)]


def test_a_topic_that_loses_a_leader_while_it_is_drained_goes_on_waiting(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        topics.send(1)
        topics.settle(session)
        topics.pause()
        topics.follow(session)
        topics.send(3)
        topics.settle(session)
        learn_nothing_of(session, topics.sick)
        topics.resume()
        turn_until(session, lambda: bool(session._publisher.aside), "its drain waits")
        (lane,) = session._publisher.aside
        session._give_up(lane, LEADERLESS)
        assert topics.sick not in session._waking.open, "it is asked about before it is tried again"
        assert topics.reasons == ["parked"] * 6
        assert not session._parked.held.messages_of
        assert [code for of_lane, _, code in topics.parked if of_lane == lane] == [LEADERLESS.code]
        topics.drain(session)
        assert topics.reasons == []
    topics.check(topics.sick, range(4), repeated=True)
    topics.check(topics.well, range(4))
