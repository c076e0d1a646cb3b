"""Pages that wait for room in the local queue, while groups of lanes could be put together or change hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.reader import Page
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes
from tests.support.relay_session import relay_session, turn_until

LOW, HIGH = {0, 1, 2, 3}, {4, 5, 6, 7}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def in_two_groups(session: Session) -> None:
    """Divide the lanes, as when half of them were taken later and have caught up."""
    turn_until(session, lambda: [group.is_level for group in session._groups] == [True], "one group, level")
    (group,) = session._groups
    session._groups = [Group(set(LOW), group.progress), Group(set(HIGH), group.progress)]


def without_room_once(session: Session) -> None:
    """Let the local queue have no room for the first page, once."""
    publish: Any = session._publish

    def full(page: Page) -> Page:
        session._publish = publish  # type: ignore[method-assign]
        return page

    session._publish = full  # type: ignore[method-assign]


def without_room_until(session: Session, condition: Callable[[], bool]) -> None:
    """Let the local queue have no room for any page before this is true."""
    publish: Any = session._publish
    session._publish = lambda page: publish(page) if condition() else page  # type: ignore[method-assign]


def let_two_pages_wait(session: Session, conn: Connection, topic: str) -> None:
    """Bring about a page of each of two groups that waits for room, with a message in each."""
    in_two_groups(session)
    first, second = keys_of_lanes(conn, topic, 1, 5)
    with conn.transaction():
        insert(conn, topic, first, "1")
        insert(conn, topic, second, "2")
    without_room_once(session)
    turn_until(session, lambda: len(session._pages) == 2, "both pages wait")


def test_groups_are_not_merged_while_pages_wait_for_room(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers) as session:
        let_two_pages_wait(session, conn, topic)
        assert [group.lanes for group in session._groups] == [LOW, HIGH]
        assert [page.group for page in session._pages] == session._groups
        publish: Any = session._publish
        spoken: list[frozenset[int]] = []

        def noted(page: Page) -> Page | None:
            left: Page | None = publish(page)
            spoken.append(session._publisher.in_flight[-1].speaks_for)
            return left

        session._publish = noted  # type: ignore[method-assign]
        turn_until(session, lambda: session.counts.recorded == 2, "both are recorded")
        assert spoken == [LOW, HIGH], "no page speaks for lanes whose rows are in another"
        assert len(session._groups) == 1
    assert sorted(record.value or b"" for record in read_topic(bootstrap_servers, topic)) == [b"1", b"2"]


def test_a_page_that_waits_leaves_out_lanes_that_are_given_back(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers) as session:
        let_two_pages_wait(session, conn, topic)
        without_room_until(session, lambda: session.lanes == LOW)
        with relay_session(database, bootstrap_servers) as other:
            turn_until(session, lambda: session.lanes == LOW, "half of the lanes are given back")
            turn_until(other, lambda: other.counts.recorded == 1, "the other relay publishes what is there")
            turn_until(session, lambda: session.counts.recorded == 1, "and this one the rest")
    assert sorted(record.value or b"" for record in read_topic(bootstrap_servers, topic)) == [b"1", b"2"]
