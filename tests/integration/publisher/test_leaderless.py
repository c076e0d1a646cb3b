"""A partition that acknowledges nothing: what it has waits, in doubt, and everything else goes on.

The messages arrive in Kafka, and what it reports of that is not learned: so each of them comes a second time, which
shows that first appearances are in order. With a broker that is killed: tests/faults/test_relay_sick_partition.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from outbox_relay.publisher.records import Topic
from outbox_relay.publisher.topics import TopicLookup
from tests.support.deaf_wires import deaf_to
from tests.support.kafka_records import read_topic
from tests.support.parking import Parking
from tests.support.plain_inserts import Connection, connect
from tests.support.relay_thread import RelayThread
from tests.support.topic_parking import TopicParking
from tests.support.waiting import wait_until

PARTITIONS = """
    SELECT DISTINCT topic, partition, split_part(error, ':', 1) FROM outbox.parked_key WHERE partition IS NOT NULL
"""
DOUBTFUL = "SELECT bool_and(in_doubt) FROM outbox.waiting"
ANNOUNCED = "SELECT count(*) FROM outbox.parked_key WHERE draining_at IS NOT NULL"
REQUEST = "UPDATE outbox.parked_key SET requested_at = clock_timestamp()"


def relay(database: str, bootstrap_servers: str) -> RelayThread:
    """A relay that waits for acknowledgements for a second, and knows its topics before a test makes it deaf."""
    return RelayThread(database, bootstrap_servers, ack_timeout=1.0)


def wait_for_hold(conn: Connection, topic: str, code: str = "PARTITION_UNAVAILABLE") -> None:
    wait_until(lambda: conn.execute(PARTITIONS).fetchall() == [(topic, 0, code)], "the partition is held")


def flow(topics: TopicParking, count: int) -> None:
    """Let both topics have messages, and wait until those of the sound one are published."""
    topics.send(count)
    wait_until(lambda: topics.is_published(topics.well, 2 * topics.sent), "the other topic flows")


@pytest.mark.parametrize("who_goes_on", ["the relay", "its successor"])
def test_what_a_silent_partition_has_is_held_in_doubt_and_the_rest_goes_on(
    database: str, bootstrap_servers: str, who_goes_on: str
) -> None:
    with connect(database) as conn:
        topics = TopicParking(conn, bootstrap_servers)
        with ExitStack() as stack:
            running = stack.enter_context(relay(database, bootstrap_servers))
            with deaf_to(topics.sick):
                flow(topics, 2)
                wait_for_hold(conn, topics.sick)
                assert conn.execute(DOUBTFUL).fetchone() == (True,)
                flow(topics, 1)
                wait_until(lambda: len(topics.reasons) == 6, "what follows waits, too")
                if who_goes_on == "its successor":
                    running.stop()
            if who_goes_on == "its successor":
                stack.enter_context(relay(database, bootstrap_servers))
            wait_until(lambda: not topics.reasons, "all of it is published")
            flow(topics, 1)
            wait_until(topics.is_settled, "the topic flows")
    topics.check(topics.sick, range(4), repeated=True)
    topics.check(topics.well, range(4))


class Leaders:
    """What Kafka answers about a topic's leaders, to relays that begin from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
        self.are_lost = False
        self.lost_answers = 0
        read = TopicLookup.read

        def misread(lookup: TopicLookup, conn: Connection, names: Iterable[str]) -> Any:
            found = dict(read(lookup, conn, names))
            if self.are_lost and isinstance(known := found.get(topic), Topic):
                found[topic] = replace(known, leaderless=frozenset((0,)))
                self.lost_answers += 1
            return found

        monkeypatch.setattr(TopicLookup, "read", misread)


def test_nothing_is_sent_to_a_partition_without_a_leader_on_request(
    database: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on by itself when it has one."""
    with connect(database) as conn:
        topics = TopicParking(conn, bootstrap_servers)
        leaders = Leaders(monkeypatch, topics.sick)
        with relay(database, bootstrap_servers):
            with deaf_to(topics.sick):
                flow(topics, 2)
                wait_for_hold(conn, topics.sick)
                leaders.are_lost = True
                wait_until(
                    lambda: leaders.lost_answers > 2 and conn.execute(ANNOUNCED).fetchone() == (0,),
                    "it is known to have no leader, and nothing of it is on the wire",
                )
            sent, answered = len(read_topic(bootstrap_servers, topics.sick)), leaders.lost_answers
            conn.execute(REQUEST)
            wait_until(lambda: leaders.lost_answers > answered + 2, "Kafka was asked again")
            flow(topics, 2)
            assert len(read_topic(bootstrap_servers, topics.sick)) == sent
            leaders.are_lost = False
            wait_until(lambda: not topics.reasons, "all of it is published")
            wait_until(topics.is_settled, "the topic flows")
    topics.check(topics.sick, range(4), repeated=True)
    topics.check(topics.well, range(4))


def test_a_key_whose_partition_is_silent_while_it_is_drained_keeps_its_request(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Its message is sound: it is drained behind its partition, without being asked for again."""
    with relay(database, bootstrap_servers):
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.bad, 1, 2)
        wait_until(lambda: parking.reasons == ["failed", "held", "held"], "the key is held")
        parking.repair()
        with deaf_to(parking.topic):
            parking.request()
            wait_for_hold(parking.conn, parking.topic)
            assert parking.doubtful[0]
            parking.send(parking.bad, 3)
            parking.send(parking.good, 0)
        wait_until(lambda: not parking.keys, "the key is drained")
        wait_until(parking.is_done, "all is published")
    found = [record.value for record in read_topic(bootstrap_servers, parking.topic) if record.value]
    mine = [one for one in dict.fromkeys(found) if one.startswith(parking.bad.encode() + b":")]
    assert mine == [f"{parking.bad}:{version}".encode() for version in range(4)]


def test_a_topic_whose_partition_is_silent_while_it_is_drained_goes_on_waiting(
    database: str, bootstrap_servers: str
) -> None:
    with connect(database) as conn:
        topics = TopicParking(conn, bootstrap_servers)
        with relay(database, bootstrap_servers) as running:
            topics.pause()
            running.wait_for("lanes taken")
            flow(topics, 3)
            wait_until(lambda: topics.reasons == ["parked"] * 6, "it waits")
            with deaf_to(topics.sick):
                topics.resume()
                wait_until(lambda: bool(conn.execute(PARTITIONS).fetchall()), "its partition is held")
                flow(topics, 1)
            wait_until(lambda: not topics.reasons, "all of it is published")
            wait_until(topics.is_settled, "the topic flows")
    topics.check(topics.sick, range(4), repeated=True)
    topics.check(topics.well, range(4))
