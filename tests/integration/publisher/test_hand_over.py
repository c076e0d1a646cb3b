"""Lanes that change hands: when they are given back and taken, and refusals of whoever has lost one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_relay.publisher import session as session_module
from outbox_relay.publisher.lease import LanesLockedError, Lease, LeaseLostError, Taken
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.upkeep import repair
from tests.support.kafka_records import compare, read_topic
from tests.support.lanes import ALL, HIGH, LOW, ask_to_drain, owned, take, wait_for_owners
from tests.support.locks import holding
from tests.support.plain_inserts import (
    Connection,
    connect,
    insert,
    insert_numbered,
    keys_of_lanes,
    numbered,
    wait_published,
)
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements


def test_a_lane_whose_row_is_held_is_given_back_when_it_is_free(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with RelayThread(database, bootstrap_servers) as first:
        session = wait_until(lambda: first.session, "it runs")
        wait_for_owners(conn, ALL)
        with RelayThread(database, bootstrap_servers) as second:
            second.wait_for("standing by")
            with holding(database, "SELECT FROM outbox.lane WHERE lane = 6 FOR UPDATE"):
                ask_to_drain(conn, session)
                wait_for_owners(conn, [0, 1, 2, 3, 4, 5, 7], [6])
                first.wait_for("lane row locked", not_done="giving the lane back")
                insert_numbered(conn, topic, 100)
                wait_published(conn)  # the lane flows although its row is held
            wait_for_owners(conn, ALL)
            assert not session.lanes
            wait_published(conn)
    found = compare(read_topic(bootstrap_servers, topic), numbered(100))
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_lane_whose_row_is_held_is_taken_when_it_is_free(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with RelayThread(database, bootstrap_servers) as relay:
        wait_for_owners(conn, ALL)
        session = wait_until(lambda: relay.session, "it runs")
        ask_to_drain(conn, session)
        wait_for_owners(conn)
        with holding(database, "SELECT FROM outbox.lane WHERE lane = 2 FOR UPDATE"):
            ask_to_drain(conn, session, is_draining=False)
            wait_for_owners(conn, [0, 1, 3, 4, 5, 6, 7])
            relay.wait_for("lane row locked", not_done="taking the lane")
            insert_numbered(conn, topic, 100)
        wait_for_owners(conn, ALL)
        wait_published(conn)
    assert not compare(read_topic(bootstrap_servers, topic), numbered(100)).broken


def reads_no_more(session: Session) -> bool:
    """Whether the relay takes turns and reads nothing in them."""
    before = session.counts.polls
    for _ in range(20):
        session.run_once(0.001)
    return session.counts.polls == before


def test_lanes_are_given_back_only_when_what_is_on_the_wire_is_recorded(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers) as session:
        (key,) = keys_of_lanes(conn, topic, 7)
        with withheld_acknowledgements():
            insert(conn, topic, key, f"{key}:0")
            turn_until(session, lambda: bool(read_topic(bootstrap_servers, topic)), "it is in Kafka")
            ask_to_drain(conn, session)
            turn_until(session, lambda: reads_no_more(session), "lanes are to be given back")
            assert session.lanes == set(ALL)
            assert owned(conn) == [ALL]
        turn_until(session, lambda: not session.lanes, "they are given back")
        assert conn.execute("SELECT count(*) FROM outbox.publication").fetchone() == (1,)
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [f"{key}:0".encode()]


def test_what_is_behind_the_last_batch_is_published_by_the_next_owner(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with (
        relay_session(database, bootstrap_servers) as first,
        relay_session(database, bootstrap_servers) as second,
    ):
        (key,) = keys_of_lanes(conn, topic, 7)
        insert(conn, topic, key, f"{key}:0")
        turn_until(first, lambda: first.counts.recorded == 1, "it is recorded")
        with holding(database, "SELECT FROM outbox.lane WHERE lane = 1 FOR UPDATE"):
            ask_to_drain(conn, first)
            turn_until(first, lambda: first.lanes == {1}, "the other lanes are given back")
            insert(conn, topic, key, f"{key}:1")
            for _ in range(20):
                first.run_once(0.001)
            assert first.counts.published == 1, "it reads the lane no more"
            turn_until(second, lambda: second.counts.recorded == 1, "the next owner records it")
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [
        f"{key}:0".encode(),
        f"{key}:1".encode(),
    ]


def lose(conn: Connection, lane: int) -> None:
    """Let another relay own a lane, as after a pause that was longer than the lease."""
    conn.execute(
        "UPDATE outbox.lane SET owner = 'another', epoch = pg_catalog.nextval('outbox.epoch') WHERE lane = %s",
        [lane],
    )


@pytest.fixture
def seldom_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays that read once who leads: what they lost is found by what they read or write."""
    monkeypatch.setattr(session_module, "LOOK_EVERY_S", 3_600.0)


@pytest.mark.usefixtures("seldom_looking")
def test_a_barrier_is_refused_when_one_lane_is_lost(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        kept, lost = keys_of_lanes(conn, topic, 1, 5)
        lose(conn, 5)
        insert(conn, topic, lost, "x")
        insert(conn, topic, kept, "x")
        with pytest.raises(LeaseLostError):
            turn_until(session, lambda: False, "it notices")
        assert session.counts.published == 0


def test_a_lost_lane_is_noticed_without_traffic(
    database: str, bootstrap_servers: str, conn: Connection
) -> None:
    """Its new owner may have ended, too; then nobody else takes what a living relay has by its own account."""
    with relay_session(database, bootstrap_servers, clean=False) as session:
        lose(conn, 5)
        with pytest.raises(LeaseLostError, match=r"lanes \[5\] of .* were taken by another relay"):
            turn_until(session, lambda: False, "it notices")


@pytest.mark.usefixtures("seldom_looking")
def test_what_was_acknowledged_of_a_lost_lane_is_left_to_its_new_owner(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with relay_session(database, bootstrap_servers, clean=False) as session:
        with withheld_acknowledgements():
            insert(conn, topic, keys_of_lanes(conn, topic, 5)[0], "x")
            turn_until(session, lambda: bool(read_topic(bootstrap_servers, topic)), "it is in Kafka")
            lose(conn, 5)
        with pytest.raises(LeaseLostError):
            turn_until(session, lambda: False, "it notices")
        assert conn.execute("SELECT count(*) FROM outbox.publication").fetchone() == (0,)


@pytest.mark.parametrize("lane", [0, 7])
def test_of_two_takers_of_a_lane_one_has_it(database: str, lane: int) -> None:
    with connect(database) as one, connect(database) as other:
        held = [take(conn, name, 60, lanes=[]) for conn, name in ((one, "one"), (other, "other"))]
        start = threading.Barrier(2)

        def race(conn: Connection, mine: Lease) -> Taken:
            start.wait(30)
            try:
                return mine.take(conn, [lane])
            except LanesLockedError:
                return Taken()

        with ThreadPoolExecutor(2) as pool:
            taken = [
                future.result()
                for future in [pool.submit(race, one, held[0]), pool.submit(race, other, held[1])]
            ]
        assert sorted(len(each.floors) for each in taken) == [0, 1]
        rows = one.execute("SELECT owner FROM outbox.lane WHERE owner IS NOT NULL").fetchall()
        assert rows == [("one" if taken[0].floors else "other",)]


def test_a_relay_that_lost_its_lease_takes_nothing(conn: Connection) -> None:
    held = take(conn, "me", 60, lanes=[0])
    conn.execute("DELETE FROM outbox.lease")
    with pytest.raises(LeaseLostError, match="ran out"):
        held.take(conn, [1])
    assert conn.execute("SELECT count(*) FROM outbox.lane WHERE owner IS NOT NULL").fetchone() == (1,)


def test_leases_of_the_dead_stay_until_the_last_of_their_lanes_is_taken(
    database: str, conn: Connection
) -> None:
    with connect(database) as dying:
        dead = take(dying, "dead", 300)
    wait_until(
        lambda: conn.execute("SELECT NOT EXISTS (SELECT FROM pg_stat_activity a JOIN outbox.lease e "
                             "ON a.pid = e.backend_pid)").fetchone() == (True,),
        "its session is gone",
    )  # fmt: skip
    insert(conn, "t", "k", b"x")
    held = take(conn, "next", 60, lanes=LOW)
    epochs = "SELECT epoch FROM outbox.lease ORDER BY epoch"
    assert conn.execute(epochs).fetchall() == [(dead.epoch,), (held.epoch,)]
    rest = held.take(conn, HIGH)
    assert conn.execute(epochs).fetchall() == [(held.epoch,)]
    assert set(rest.doubted.values()) == {1}, "it may have published what was there"


def test_two_sessions_of_one_owner_do_not_wait_for_each_other(database: str, conn: Connection) -> None:
    """A relay that joins again need not wait for the lease of its last session, which a pooler may keep alive."""
    with psycopg.connect(database, autocommit=True) as old:
        take(old, "me", 300)
        assert take(conn, "me", 300).lanes == frozenset(ALL)


def test_lost_messages_of_a_lane_that_another_has_are_left_to_it(conn: Connection) -> None:
    mine, theirs = keys_of_lanes(conn, "t", 1, 5)
    ids = [insert(conn, "t", key, "x") for key in (mine, theirs)]
    held = take(conn, "me", 60, lanes=LOW)
    before = dict(conn.execute("SELECT message_id::text, position FROM outbox.message").fetchall())
    rows = conn.execute("SELECT array_agg(id ORDER BY id) FROM outbox.message").fetchone()
    assert rows is not None
    repair(conn, rows[0], held)
    after = dict(conn.execute("SELECT message_id::text, position FROM outbox.message").fetchall())
    assert after[ids[0]] > before[ids[0]]
    assert after[ids[1]] == before[ids[1]]
