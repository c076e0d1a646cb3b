"""A topic that skips ahead: a message that cannot be published parks alone, and the next ones of its key go on."""

from __future__ import annotations

import pytest

from outbox_relay.operations import holds
from outbox_relay.operations.dead_letters import act
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.locks import holding
from tests.support.parking import Parking, relay
from tests.support.plain_inserts import insert
from tests.support.relay_session import loop_of, turn_until
from tests.support.servers import MakeTopic
from tests.support.withheld_acknowledgements import withheld_acknowledgements

SKIP = "UPDATE outbox.topic SET skip_ahead = true WHERE name = %s"
PAUSE = """
    UPDATE outbox.topic SET paused_at = clock_timestamp(), paused_by = 'a test', pause_reason = 'to see' WHERE name = %s
"""
RESUME = "UPDATE outbox.topic SET paused_at = NULL, paused_by = NULL, pause_reason = NULL WHERE name = %s"


@pytest.fixture
def skipping(parking: Parking) -> Parking:
    """The topic of which large messages cannot be published, which skips ahead."""
    parking.conn.execute(SKIP, [parking.topic])
    return parking


def versions(servers: str, parking: Parking, key: str) -> list[int]:
    """Return the versions of a key as they arrived, each once, where it came first."""
    values = [record.value for record in read_topic(servers, parking.topic) if record.value]
    mine = [value for value in values if value.startswith(key.encode() + b":")]
    return [int(value.rpartition(b":")[2]) for value in dict.fromkeys(mine)]


def follow(session: Session, parking: Parking) -> None:
    """Let the relay notice what has changed of the topics."""
    (wanted,) = parking.conn.execute("SELECT generation FROM outbox.topic_generation").fetchone() or (0,)
    turn_until(session, lambda: loop_of(session).topics.generation == wanted, "the relay has seen it")


def test_a_message_that_cannot_be_published_parks_alone_and_comes_later_on_request(
    database: str, bootstrap_servers: str, skipping: Parking
) -> None:
    with relay(database, bootstrap_servers, clean=False) as session:
        skipping.send(skipping.bad, 0)
        skipping.send(skipping.bad, 1, poison=True)
        skipping.send(skipping.bad, 2, 3, poison=True)
        skipping.send(skipping.bad, 4)
        skipping.settle(session)
        assert skipping.reasons == ["failed"] * 3
        assert [(topic, key) for topic, key, _ in skipping.keys] == [(skipping.topic, None)] * 3
    assert versions(bootstrap_servers, skipping, skipping.bad) == [0, 4]
    one, two, three = holds.everything(skipping.conn)
    assert [hold.waiting for hold in (one, two, three)] == [0, 0, 0]
    assert one.message_id is not None
    assert act(skipping.conn, "skip", (None, one.message_id), "a test", 1.0).result == "decided"
    # The successor reads how far the lane is, and passes over what is parked.
    with relay(database, bootstrap_servers) as successor:
        skipping.send(skipping.bad, 5)
        turn_until(successor, lambda: len(skipping.keys) == 2, "the one that was given up is parked no more")
        skipping.settle(successor)
        skipping.repair()
        skipping.request()
        skipping.drain(successor)
    assert versions(bootstrap_servers, skipping, skipping.bad) == [0, 4, 5, 2, 3]


@pytest.mark.usefixtures("may_not_describe_configs")
def test_a_message_that_the_broker_refuses_parks_alone(
    database: str, bootstrap_servers: str, make_topic: MakeTopic, skipping: Parking
) -> None:
    """It is known as refused only once it was on the wire, with the next ones of its queue behind it."""
    compacted = make_topic(partitions=1, cleanup_policy="compact")
    register = "INSERT INTO outbox.topic (name, partitions, skip_ahead) VALUES (%s, 1, true)"
    skipping.conn.execute(register, [compacted])
    with relay(database, bootstrap_servers) as session:
        with skipping.conn.transaction():
            insert(skipping.conn, compacted, None, b"no key", lane=3, queue=0)
            insert(skipping.conn, compacted, "k", b"behind it", lane=3, queue=0)
        skipping.settle(session)
        assert skipping.reasons == ["failed"]
        ((name, _, error),) = skipping.keys
        assert name == compacted
        assert error.startswith("INVALID_RECORD")
        assert skipping.conn.execute("SELECT queue FROM outbox.parked_key").fetchall() == [(None,)]
    assert [record.value for record in read_topic(bootstrap_servers, compacted)] == [b"behind it"]


def test_what_a_dead_relay_skipped_without_a_record_is_skipped_again(
    database: str, bootstrap_servers: str, skipping: Parking
) -> None:
    """It dies between the next message of the key, which is in Kafka, and the record of both."""
    with relay(database, bootstrap_servers, clean=False) as session:
        skipping.send(skipping.bad, 0)
        skipping.settle(session)
        with holding(database, "SELECT FROM outbox.lane FOR UPDATE"), withheld_acknowledgements():
            with skipping.conn.transaction():
                skipping.send(skipping.bad, 1, poison=True)
                skipping.send(skipping.bad, 2)
            turn_until(
                session,
                lambda: len(read_topic(bootstrap_servers, skipping.topic)) == 2,
                "what follows is sent",
            )
            assert skipping.keys == []
    with relay(database, bootstrap_servers) as successor:
        skipping.settle(successor)
        assert skipping.reasons == ["failed"]
        skipping.publish(successor)
    assert versions(bootstrap_servers, skipping, skipping.bad) == [0, 2, 1]


def test_a_topic_that_goes_on_after_a_pause_skips_ahead_as_well(
    database: str, bootstrap_servers: str, skipping: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        skipping.send(skipping.bad, 0)
        skipping.settle(session)
        skipping.conn.execute(PAUSE, [skipping.topic])
        follow(session, skipping)
        skipping.send(skipping.bad, 1, poison=True)
        skipping.send(skipping.bad, 2)
        turn_until(session, lambda: skipping.reasons == ["parked"] * 2, "both wait for the topic")
        skipping.conn.execute(RESUME, [skipping.topic])
        turn_until(session, lambda: skipping.reasons == ["failed"], "only one waits")
        skipping.settle(session)
    assert versions(bootstrap_servers, skipping, skipping.bad) == [0, 2]


def test_a_topic_that_skips_ahead_no_more_keeps_its_order_once_the_relay_knows(
    database: str, bootstrap_servers: str, skipping: Parking
) -> None:
    generation = "SELECT generation FROM outbox.topic_generation"
    with relay(database, bootstrap_servers) as session:
        skipping.send(skipping.bad, 0)
        skipping.settle(session)
        before = skipping.conn.execute(generation).fetchone() or (0,)
        skipping.conn.execute("UPDATE outbox.topic SET skip_ahead = false WHERE name = %s", [skipping.topic])
        after = skipping.conn.execute(generation).fetchone() or (0,)
        assert after > before, "no relay reads the topic before its time otherwise"
        follow(session, skipping)
        skipping.send(skipping.bad, 1, poison=True)
        skipping.send(skipping.bad, 2)
        skipping.settle(session)
        assert skipping.reasons == ["failed", "held"]


def test_a_key_that_was_parked_before_the_choice_keeps_its_order(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.conn.execute(SKIP, [parking.topic])
        follow(session, parking)
        insert(parking.conn, parking.topic, parking.bad, f"{parking.bad}:2")
        parking.settle(session)
        assert parking.reasons == ["failed", "held", "held"]
        parking.publish(session)
    assert versions(bootstrap_servers, parking, parking.bad) == [0, 1, 2]
