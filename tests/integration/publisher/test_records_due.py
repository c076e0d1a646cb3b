"""When what is acknowledged is recorded, and when the relay rests between two turns.

In steady state what is acknowledged waits for more, so a relay that dies repeats that. Schedules: it dies before the
record: its successor publishes all of it again, and loses nothing. It is stopped: all is recorded before its lanes are
given back. A lane is to be given back, a key is drained, lanes are in several groups: nothing waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from outbox_relay.publisher import session as session_module
from outbox_relay.publisher.barriers import RECORD_MESSAGES, RECORD_S, Barriers
from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.lease import LeaseLostError
from outbox_relay.publisher.session import FEW, REST_S
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect, keys_of_lanes
from tests.support.plain_inserts import insert as insert_one
from tests.support.publications import value
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.settled_relay import SettledRelay

RECORDED = "SELECT coalesce(sum(pg_catalog.cardinality(positions)), 0)::bigint FROM outbox.publication"
WAIT_S = 0.015
"""Longer than the rest of a turn that found something."""


@pytest.fixture
def topic(make_topic: MakeTopic) -> str:
    return make_topic()


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


@pytest.fixture
def relay(database: str, conn: Connection, bootstrap_servers: str, topic: str) -> Iterator[SettledRelay]:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        relay = SettledRelay(session, conn, topic)
        relay.record_soon(is_time=False)
        yield relay


def acknowledged(relay: SettledRelay, messages: int) -> None:
    """Have so many messages acknowledged that are not recorded, by a relay whose last poll found all flushed."""
    relay.send(messages)
    relay.turn()
    relay.acknowledge()
    # Where that turn needed a barrier, it noted the time of one.
    relay.record_soon(is_time=False)
    assert relay.session.unsettled == messages
    relay.session._finder.found_flushed = True


def test_few_messages_wait_until_it_is_time(relay: SettledRelay, conn: Connection) -> None:
    acknowledged(relay, RECORD_MESSAGES - 1)
    before = value(conn, RECORDED)
    relay.turn()
    assert relay.session.unsettled == RECORD_MESSAGES - 1
    assert value(conn, RECORDED) == before
    relay.record_soon(is_time=True)
    relay.turn()
    assert not relay.session.unsettled
    assert value(conn, RECORDED) == before + RECORD_MESSAGES - 1


@pytest.mark.parametrize(
    ("has_found", "waited", "is_recorded"),
    [(True, 0.5, False), (True, 1.5, True), (False, 1.5, False), (False, 2.5, True)],
)
def test_a_record_waits_a_while_for_a_turn_behind_one_that_found_something(
    relay: SettledRelay, monkeypatch: pytest.MonkeyPatch, has_found: bool, waited: float, is_recorded: bool
) -> None:
    """What a poll with a record finds waits for its flush; there is least to find after a turn that found something."""
    acknowledged(relay, 1)
    relay.session._has_found = has_found
    monkeypatch.setattr(Barriers, "_since_record", waited * RECORD_S)
    relay.turn()
    assert (relay.session.unsettled == 0) is is_recorded


def test_many_messages_wait_for_nothing(relay: SettledRelay) -> None:
    acknowledged(relay, RECORD_MESSAGES)
    relay.turn()
    assert not relay.session.unsettled


def test_a_record_travels_along_if_the_last_poll_needed_a_barrier(relay: SettledRelay) -> None:
    acknowledged(relay, 1)
    relay.session._finder.found_flushed = False
    relay.turn()
    assert not relay.session.unsettled


def test_nothing_waits_when_a_lane_is_to_be_given_back(relay: SettledRelay) -> None:
    acknowledged(relay, 1)
    relay.session._leave(frozenset({3}))
    relay.turn()
    assert not relay.session.unsettled


def test_nothing_waits_where_lanes_are_in_several_groups(relay: SettledRelay) -> None:
    acknowledged(relay, 1)
    (group,) = relay.session._groups
    group.lanes.remove(3)
    relay.session._groups.append(Group({3}, group.progress))
    relay.turn()
    assert not relay.session.unsettled


def test_a_successor_repeats_what_waited_and_loses_nothing(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        relay = SettledRelay(session, conn, topic)
        relay.record_soon(is_time=False)
        acknowledged(relay, 5)
        before = value(conn, RECORDED)
    with relay_session(database, bootstrap_servers) as session:
        turn_until(session, lambda: session.counts.recorded == 5, "the five are published again")
    assert value(conn, RECORDED) == before + 5
    ids = [record.message_id for record in read_topic(bootstrap_servers, topic)]
    assert len(ids) == before + 10
    assert len(set(ids)) == before + 5


def test_a_record_is_the_begin_of_the_time_for_the_next_one(relay: SettledRelay) -> None:
    acknowledged(relay, 1)
    relay.record_soon(is_time=True)
    before = time.monotonic()
    relay.turn()
    assert before <= relay.session._noted_at <= time.monotonic()


@pytest.mark.parametrize("is_expected", [False, True])
def test_a_poll_that_finds_nothing_says_nothing_of_the_next(relay: SettledRelay, is_expected: bool) -> None:
    acknowledged(relay, 1)
    finder = relay.session._finder
    finder.found_flushed = finder._last_flushed = is_expected
    for _ in range(2):
        relay.turn()
    assert finder.found_flushed is is_expected


def test_a_lane_that_was_taken_meanwhile_has_nothing_recorded_or_published(
    relay: SettledRelay, conn: Connection
) -> None:
    acknowledged(relay, 1)
    before = value(conn, RECORDED)
    conn.execute("UPDATE outbox.lane SET epoch = epoch + 1, owner = 'another'")
    relay.send(1)
    relay.record_soon(is_time=True)
    sent = relay.session.counts.published
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert value(conn, RECORDED) == before
    assert relay.session.counts.published == sent


def test_a_relay_that_is_stopped_leaves_nothing_to_its_successor(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    with relay_session(database, bootstrap_servers) as session:
        relay = SettledRelay(session, conn, topic)
        relay.record_soon(is_time=False)
        acknowledged(relay, 5)
        before = value(conn, RECORDED)
    assert value(conn, RECORDED) == before + 5


def test_the_time_to_an_acknowledgement_does_not_contain_the_time_to_the_record(relay: SettledRelay) -> None:
    acknowledged(relay, 1)
    relay.turn()
    (batch,) = relay.session._publisher.in_flight
    assert batch.acknowledged_at is not None
    ack, age = relay.session.counts.ack, relay.session.counts.age
    before, before_age = ack.total, age.total
    batch.acknowledged_at = batch.since + 0.25
    batch.born = time.time() - (time.monotonic() - batch.since) - 1.0
    relay.record_soon(is_time=True)
    relay.turn()
    assert ack.total - before == pytest.approx(0.25)
    assert age.total - before_age == pytest.approx(1.25, abs=0.1)


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    rests: list[float] = []
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=rests.append)
    monkeypatch.setattr(session_module, "time", clock)
    return rests


def test_a_turn_is_followed_by_a_rest(relay: SettledRelay, rests: list[float]) -> None:
    relay.send(FEW - 1)
    assert relay.session.run_once(WAIT_S)
    assert rests == [REST_S], "there is traffic: the next message may come soon"
    assert not relay.session.run_once(WAIT_S)
    assert rests == [REST_S, WAIT_S], "an acknowledgement does not end it"


def test_a_turn_with_a_record_that_is_due_follows_at_once(
    relay: SettledRelay, rests: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # (Also behind a barrier, which is a record: what other tests write is not always flushed when the poll asks.)
    monkeypatch.setattr(Barriers, "_since_record", RECORD_S)
    relay.send(1)
    assert relay.session.run_once(WAIT_S)
    assert rests == []


def test_a_backlog_is_followed_by_no_rest(relay: SettledRelay, rests: list[float]) -> None:
    relay.send(FEW)
    assert relay.session.run_once(WAIT_S)
    assert rests == []


def test_nothing_rests_or_waits_while_a_key_is_drained(
    relay: SettledRelay, rests: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged(relay, 1)
    rests.clear()
    monkeypatch.setattr(relay.session, "_drain", object())
    monkeypatch.setattr(relay.session, "_drain_next", lambda: False)
    relay.session.run_once(0)
    assert rests == []
    assert not relay.session.unsettled


def test_nothing_rests_or_waits_next_to_a_lane_that_is_set_aside(
    relay: SettledRelay, rests: list[float], conn: Connection, topic: str
) -> None:
    """Its group is one of its own until all of it is recorded."""
    session = relay.session
    two, three = keys_of_lanes(conn, topic, 2, 3)
    insert_one(conn, topic, three, "1")
    session._turn()
    session._set_aside({3})
    insert_one(conn, topic, two, "1")
    assert session.run_once(WAIT_S)
    assert rests == []
    relay.acknowledge()
    session._finder.found_flushed = True
    relay.turn()
    assert not session._publisher.in_flight
