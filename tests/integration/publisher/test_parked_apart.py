"""A key of a topic with a backlog is held and drained, while a part of the backlog is published.

The tests act between two turns of a session. Each page is of ten messages, so the topic is read from a list, which
holds many pages of the key when its drain begins.
"""

from __future__ import annotations

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.lanes import ask_to_drain
from tests.support.parking import Parking
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread

PAGE = 10
ROUNDS = 300
"""Messages of either key in the backlog."""
HELD = 100


def hold(session: Session, parking: Parking) -> None:
    """Let a relay that is caught up read a backlog of two keys in turn, and hold a part of one of them.

    The first message of that one is larger than its topic takes.
    """
    with parking.conn.transaction():
        for version in range(ROUNDS):
            parking.send(parking.bad, version, poison=not version)
            parking.send(parking.good, version)
    turn_until(session, lambda: len(parking.reasons) >= HELD, "a part of the key is held")
    assert not parking.is_done(), "the rest is still to be published"


def check(bootstrap_servers: str, parking: Parking) -> None:
    keys = (parking.bad, parking.good)
    expected = [(key, version) for version in range(ROUNDS) for key in keys]
    found = compare(read_topic(bootstrap_servers, parking.topic), expected)
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_successor_repeats_nothing_of_a_key_that_was_held_beside_a_backlog(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        hold(session, parking)
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        parking.settle(session)
        parking.publish(session)
    check(bootstrap_servers, parking)


def test_what_is_drained_is_not_published_again_by_a_list_that_was_made_before(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        hold(session, parking)
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        turn_until(session, lambda: session.counts.published > PAGE, "pages of the list are published")
        assert parking.reasons[0] == "failed"
        parking.publish(session)
    check(bootstrap_servers, parking)


def test_what_is_drained_beside_a_backlog_is_not_repeated_when_lanes_change_hands(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        hold(session, parking)
        parking.repair()
        parking.request()
        turn_until(session, lambda: "failed" not in parking.reasons, "a part of it is drained")
        with RelayThread(database, bootstrap_servers, page=PAGE):
            ask_to_drain(parking.conn, session)
            turn_until(session, lambda: not session.lanes, "lanes are given back")
            parking.drain(session)
    check(bootstrap_servers, parking)


def test_what_is_drained_before_the_backlog_is_read_is_not_repeated(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """The first session records claims only, so the lanes are taken with the progress from before them."""
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        with parking.conn.transaction():
            parking.send(parking.bad, 0, poison=True)
            parking.send(parking.bad, *range(1, HELD))
        turn_until(session, lambda: len(parking.reasons) == HELD, "the whole key is held")
    parking.repair()
    parking.request()
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        parking.drain(session)
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        parking.send(parking.good, 0)
        parking.settle(session)
        assert session.counts.published == 1
    expected = [*((parking.bad, version) for version in range(HELD)), (parking.good, 0)]
    found = compare(read_topic(bootstrap_servers, parking.topic), expected)
    assert not found.broken
    assert found.duplicate_records == 0
