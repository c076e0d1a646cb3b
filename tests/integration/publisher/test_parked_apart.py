"""A key of a topic that is read apart is parked and drained, while a part of the backlog is published.

The tests act between two turns of a session. Each page is of ten messages, so the list of the topic holds many pages of
the key when its drain begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import compare, read_topic
from tests.support.parking import Parking
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

PAGE = 10
ROUNDS = 300
"""Messages of either key in the backlog."""
HELD = 100
FIRST = "first"
NEWEST = "SELECT pg_catalog.cardinality(lanes) FROM outbox.publication ORDER BY batch DESC LIMIT 1"


@pytest.fixture
def parking(database: str, make_topic: MakeTopic) -> Iterator[Parking]:
    with connect(database) as conn:
        yield Parking(conn, make_topic(partitions=1))


def flood(parking: Parking) -> None:
    """Write a backlog of two keys in turn, the first message of one of them larger than its topic takes."""
    with parking.conn.transaction():
        for version in range(ROUNDS):
            parking.send(parking.bad, version, poison=not version)
            parking.send(parking.good, version)


def begin(session: Session, parking: Parking) -> None:
    """Let a relay publish until all its lanes have the same progress.

    Of a new topic Kafka may reply late. The lane of its first message is then set aside, and recorded alone.
    """

    def is_together() -> bool:
        insert(parking.conn, parking.topic, FIRST, f"{FIRST}:{len(first(parking))}")
        parking.settle(session)
        return parking.conn.execute(NEWEST).fetchone() == (8,)

    wait_until(is_together, "all lanes are recorded together")


def first(parking: Parking) -> list[tuple[str, int]]:
    """Return what `begin` has sent."""
    sent = parking.conn.execute("SELECT FROM outbox.message WHERE key = %s", [FIRST.encode()]).rowcount
    return [(FIRST, version) for version in range(sent)]


def park(session: Session, parking: Parking) -> None:
    """Let a relay that is caught up meet the backlog, and hold a part of the key in it."""
    begin(session, parking)
    flood(parking)
    turn_until(session, lambda: len(parking.reasons) >= HELD, "a part of the key is held")
    assert any(group.split for group in session._groups), "the topic is read apart"
    assert not parking.is_done(), "the rest is still to be published"


def make_list(session: Session) -> None:
    """Let the topic be listed, and the first page of it be published."""
    turn_until(session, lambda: any(group.served for group in session._groups), "a page of the list is taken")


def check(bootstrap_servers: str, parking: Parking) -> None:
    keys = (parking.bad, parking.good)
    expected = [*first(parking), *((key, version) for version in range(ROUNDS) for key in keys)]
    found = compare(read_topic(bootstrap_servers, parking.topic), expected)
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_successor_repeats_nothing_of_a_key_that_was_parked_apart(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        park(session, parking)
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        parking.settle(session)
        parking.repair()
        parking.request(session)
        parking.drain(session)
    check(bootstrap_servers, parking)


def test_what_is_drained_is_not_published_again_by_a_list_that_was_made_before(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        park(session, parking)
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        make_list(session)
        assert parking.reasons[0] == "failed"
        parking.repair()
        parking.request(session)
        parking.drain(session)
        assert session._parked.held.drained == {}, "the lane is read: it is forgotten"
    check(bootstrap_servers, parking)


def test_lanes_that_leave_a_split_repeat_nothing_that_was_drained(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        park(session, parking)
        parking.repair()
        parking.request(session)
        turn_until(session, lambda: not parking.reasons, "what is held is drained")
        assert not parking.is_done()
        session._set_aside({3})
        parking.drain(session)
    check(bootstrap_servers, parking)


def test_a_drain_that_finds_no_room_beside_a_backlog_goes_on_later(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """The progress that it records is a floor, before and after it."""
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        park(session, parking)
        parking.repair()
        parking.request(session)
        publish: Any = session._publish_held
        drained: list[int] = []

        def with_room_for_20(drain: Any, ids: Any, most: int) -> None:
            with RoomFor(session, 20):
                publish(drain, ids, most)
            drained.append(session.counts.published)

        session._publish_held = with_room_for_20
        parking.drain(session)
        assert len(drained) > 3, "it was published in parts"
        parking.settle(session)
    check(bootstrap_servers, parking)


def test_a_drain_next_to_a_list_of_which_nothing_is_taken_is_not_repeated(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """The first session records claims only, so the lane is taken with the progress from before them."""
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        begin(session, parking)
        with parking.conn.transaction():
            parking.send(parking.bad, 0, poison=True)
            parking.send(parking.bad, *range(1, HELD))
        turn_until(session, lambda: len(parking.reasons) == HELD, "the whole key is held")
    parking.repair()
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        session._lists_to_read = lambda: 0
        turn_until(session, lambda: any(group.split for group in session._groups), "the topic is read apart")
        parking.request(session)
        turn_until(session, lambda: not parking.keys, "the key is drained")
        assert any(group.is_listed for group in session._groups), "nothing of the list was taken"
    with relay_session(database, bootstrap_servers, page=PAGE) as session:
        for _ in range(20):
            session.run_once(0.005)
        assert session.counts.published == 0
    found = compare(
        read_topic(bootstrap_servers, parking.topic),
        [*first(parking), *((parking.bad, version) for version in range(HELD))],
    )
    assert not found.broken
    assert found.duplicate_records == 0


class RoomFor:
    """The local queue has room for so many messages, and for no more until the block ends."""

    def __init__(self, session: Session, messages: int) -> None:
        self._producers: Any = session._publisher._producers
        self._publisher = session._publisher
        self._left = messages

    def __enter__(self) -> None:
        of: Callable[..., Any] = self._producers.of
        self._while_full = self._publisher.while_full
        self._publisher.while_full = lambda seconds: False

        def limited(*args: Any, **named: Any) -> Any:
            producer = of(*args, **named)

            class Limited:
                @staticmethod
                def produce(*args: Any, **named: Any) -> None:
                    self._left -= 1
                    if self._left < 0:
                        raise BufferError
                    producer.produce(*args, **named)

            return Limited

        self._producers.of = limited

    def __exit__(self, *error: object) -> None:
        del self._producers.of
        self._publisher.while_full = self._while_full
