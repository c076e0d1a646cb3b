"""When what is acknowledged is recorded.

In steady state it waits for more, so a relay that dies repeats that. Schedules: it dies before the record: its
successor publishes all of it again, and loses nothing. It is stopped: all is recorded before its lanes are given back.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from outbox_relay.publisher.lease import LeaseLostError
from outbox_relay.publisher.loop import RECORD_MESSAGES
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect
from tests.support.publications import value
from tests.support.relay_session import relay_session, turn_until
from tests.support.settled_relay import SettledRelay

RECORDED = "SELECT coalesce(sum(pg_catalog.cardinality(positions)), 0)::bigint FROM outbox.publication"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


@pytest.fixture
def relay(database: str, conn: Connection, bootstrap_servers: str, topic: str) -> Iterator[SettledRelay]:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        yield SettledRelay(session, conn, topic)


def test_few_messages_wait_until_it_is_time(relay: SettledRelay, conn: Connection) -> None:
    relay.let_acknowledge(RECORD_MESSAGES - 1)
    before = value(conn, RECORDED)
    relay.turn()
    assert relay.session.unsettled == RECORD_MESSAGES - 1
    assert value(conn, RECORDED) == before
    relay.record_soon(is_time=True)
    relay.turn()
    assert not relay.session.unsettled
    assert value(conn, RECORDED) == before + RECORD_MESSAGES - 1


def test_many_messages_wait_for_nothing(relay: SettledRelay) -> None:
    relay.let_acknowledge(RECORD_MESSAGES)
    relay.turn()
    assert not relay.session.unsettled


def test_a_successor_records_what_waited_and_repeats_nothing(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        relay = SettledRelay(session, conn, topic)
        relay.let_acknowledge(5)
        before = value(conn, RECORDED)
    with relay_session(database, bootstrap_servers) as session:
        turn_until(session, lambda: session.counts.recorded == 5, "the five are read back")
    assert value(conn, RECORDED) == before + 5
    ids = [record.message_id for record in read_topic(bootstrap_servers, topic)]
    assert len(ids) == len(set(ids)) == before + 5


def test_a_lane_that_was_taken_meanwhile_has_nothing_recorded_or_published(
    relay: SettledRelay, conn: Connection
) -> None:
    relay.let_acknowledge(1)
    before = value(conn, RECORDED)
    conn.execute("UPDATE outbox.lane SET epoch = epoch + 1, owner = 'another'")
    relay.send(1)
    relay.record_soon(is_time=True)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert value(conn, RECORDED) == before
    assert relay.sent == 0


def test_a_relay_that_is_stopped_leaves_nothing_to_its_successor(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    with relay_session(database, bootstrap_servers) as session:
        relay = SettledRelay(session, conn, topic)
        relay.let_acknowledge(5)
        before = value(conn, RECORDED)
    assert value(conn, RECORDED) == before + 5


def test_the_time_to_an_acknowledgement_does_not_contain_the_time_to_the_record(relay: SettledRelay) -> None:
    relay.let_acknowledge(1)
    relay.turn()
    counts = relay.session.counts
    ack, age = counts.ack.classes.copy(), counts.age.classes.copy()
    assert relay.session.unsettled == 1
    relay.record_soon(is_time=True)
    relay.turn()
    assert not relay.session.unsettled
    assert (counts.ack.classes, counts.age.classes) == (ack, age)
    assert sum(ack) == sum(age) == 4
