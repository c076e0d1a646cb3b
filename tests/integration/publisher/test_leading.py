"""One relay of a shard leads: it takes over, hands over, and gives way to an older one that has lanes, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from outbox_relay.publisher import session as session_module
from outbox_relay.publisher.lease import Lease
from outbox_relay.publisher.session import Session
from tests.support.concurrent_writers import Writers
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
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.waiting import wait_until


def wait_for_relays(conn: Connection, count: int) -> None:
    statement = "SELECT count(*) FROM outbox.lease"
    wait_until(lambda: conn.execute(statement).fetchone() == (count,), f"{count} relays have joined")


def test_of_three_relays_one_leads_and_one_of_the_others_takes_over_when_it_stops(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    """Both standbys find that nobody leads, at about the same time: one of them has all lanes."""
    with ExitStack() as stack:
        relays = [stack.enter_context(RelayThread(database, bootstrap_servers)) for _ in range(3)]
        wait_for_relays(conn, 3)
        for number in range(2):
            wait_for_owners(conn, ALL)
            insert_numbered(conn, topic, 200, start=number * 200)
            wait_published(conn)
            leader = wait_until(
                lambda: next((each for each in relays if each.session and each.session.lanes), None),
                "one knows that it leads",
            )
            leader.stop()
            relays.remove(leader)
        wait_for_owners(conn, ALL)
        insert_numbered(conn, topic, 200, start=400)
        wait_published(conn)
    found = compare(read_topic(bootstrap_servers, topic), numbered(600))
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_rolling_restart_repeats_nothing(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with Writers(database, topic, seed=4, pace=0.001) as writers, ExitStack() as stack:
        relays = [stack.enter_context(RelayProcess(database, bootstrap_servers)) for _ in range(2)]
        wait_for_relays(conn, 2)
        for old in relays:
            stack.enter_context(RelayProcess(database, bootstrap_servers)).wait_for("standing by")
            old.stop()
            wait_for_owners(conn, ALL)
            writers.wait_for(50)
        writers.stop()
        wait_published(conn)
        found = compare(read_topic(bootstrap_servers, topic), writers.committed())
    assert not found.broken
    assert found.duplicate_records == 0


def test_a_standby_takes_the_lanes_of_a_killed_leader(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with (
        RelayProcess(database, bootstrap_servers, "--lease", "300").wait_until_running() as first,
        RelayProcess(database, bootstrap_servers, "--lease", "300") as second,
        Writers(database, topic, seed=5, pace=0.001) as writers,
    ):
        second.wait_for("standing by")
        writers.wait_for(200)
        first.kill()
        second.wait_for("lanes taken", lanes=ALL)
        writers.wait_for(100)
        writers.stop()
        wait_published(conn)
        second.stop()
        assert not compare(read_topic(bootstrap_servers, topic), writers.committed()).broken


def test_a_relay_paused_past_its_lease_joins_again_and_overtakes_nothing(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with (
        RelayProcess(database, bootstrap_servers, "--lease", "1").wait_until_running() as first,
        RelayProcess(database, bootstrap_servers, "--lease", "1") as second,
        Writers(database, topic, seed=6, pace=0.001) as writers,
    ):
        second.wait_for("standing by")
        for relay, other in ((first, second), (second, first)):
            stood_by, took = relay.count("standing by"), other.count("lanes taken")
            relay.pause()
            wait_until(lambda other=other, took=took: other.count("lanes taken") > took, "it takes over")  # type: ignore[misc]
            writers.wait_for(50)
            relay.go_on()
            wait_until(
                lambda relay=relay, stood_by=stood_by: relay.count("standing by") > stood_by,  # type: ignore[misc]
                "it notices, and joins again",
            )
            assert relay.count("lanes lost, joining again") == 1
            assert owned(conn) == [ALL]
        writers.stop()
        wait_published(conn)
        for relay in (first, second):
            assert "Traceback" not in relay.output()
            relay.stop()
        assert not compare(read_topic(bootstrap_servers, topic), writers.committed()).broken


@pytest.fixture
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relays that read in every turn who leads."""
    monkeypatch.setattr(session_module, "LOOK_EVERY_S", 0.0)


@contextmanager
def leaving_lane_2(database: str, servers: str) -> Iterator[Session]:
    """A relay that leads all lanes but one, whose row was held when it joined; it takes no turn by itself."""
    with ExitStack() as stack:
        with holding(database, "SELECT FROM outbox.lane WHERE lane = 2 FOR UPDATE"):
            session = stack.enter_context(relay_session(database, servers))
        yield session


@contextmanager
def split(database: str, servers: str, conn: Connection) -> Iterator[tuple[Lease, Session]]:
    """An older relay with one lane, and a younger one with all others: the older one took what the younger left."""
    older = take(conn, "older", 600, lanes=[])
    with leaving_lane_2(database, servers) as session:
        assert set(older.take(conn, [2]).floors) == {2}
        assert session.lanes == {0, 1, 3, 4, 5, 6, 7}
        yield older, session


def test_the_younger_of_two_relays_that_have_lanes_gives_its_back(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with split(database, bootstrap_servers, conn) as (older, session):
        insert(conn, topic, keys_of_lanes(conn, topic, 5)[0], "x")
        turn_until(session, lambda: not session.lanes, "it gives its lanes back")
        assert session.counts.recorded == session.counts.published
        assert owned(conn) == [[2]], "it takes none of them again"
        assert len(older.take(conn, ALL).floors) == 7


@pytest.mark.usefixtures("always_looking")
def test_the_older_of_two_relays_that_have_lanes_keeps_its_own_and_takes_the_rest(
    database: str, bootstrap_servers: str, conn: Connection
) -> None:
    with leaving_lane_2(database, bootstrap_servers) as session, connect(database) as other:
        younger = take(other, "younger", 600, lanes=[2])
        for _ in range(20):
            session.run_once(0.001)
        assert len(session.lanes) == 7
        younger.give_back(other, {2: 0})
        turn_until(session, lambda: session.lanes == set(ALL), "it has all lanes")


@pytest.mark.usefixtures("always_looking")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("is_draining = true", id="drains"),
        pytest.param("lacks_kafka = true", id="lacks Kafka"),
        pytest.param("shard = NULL", id="is of the version before"),
        pytest.param("shard = '2/2'", id="is of another shard"),
        pytest.param("leased_until = clock_timestamp()", id="lives no longer"),
    ],
)
def test_a_younger_relay_keeps_its_lanes_beside_one_that(
    database: str, bootstrap_servers: str, conn: Connection, change: str
) -> None:
    with split(database, bootstrap_servers, conn) as (older, session):
        conn.execute(f"UPDATE outbox.lease SET {change} WHERE epoch = %s".encode(), [older.epoch])
        for _ in range(20):
            session.run_once(0.001)
        assert len(session.lanes) >= 7
        if "leased_until" not in change:
            older.give_back(conn, {2: 0})
        turn_until(session, lambda: session.lanes == set(ALL), "it takes what becomes free")


@pytest.mark.usefixtures("always_looking")
def test_a_standby_takes_no_free_lane_while_another_relay_leads(
    database: str, bootstrap_servers: str, conn: Connection
) -> None:
    leader = take(conn, "leader", 600, lanes=LOW)
    with relay_session(database, bootstrap_servers) as standby:
        for _ in range(5):
            standby.run_once(0)
        assert not standby.lanes
        leader.release(conn)
        standby.run_once(0)
        assert standby.lanes == set(ALL)


def test_two_shards_have_a_leader_each_and_a_standby_takes_over_its_own_only(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with (
        RelayProcess(database, bootstrap_servers, "--shard", "1/2").wait_until_running() as first,
        RelayProcess(database, bootstrap_servers, "--shard", "1/2") as standby,
        RelayProcess(database, bootstrap_servers, variables={"OUTBOX_SHARD": "2/2"}) as second,
        Writers(database, topic, seed=7, pace=0.001) as writers,
    ):
        standby.wait_for("standing by")
        second.wait_for("lanes taken", lanes=HIGH)
        assert owned(conn) == [LOW, HIGH]
        writers.wait_for(100)
        first.kill()
        standby.wait_for("lanes taken", lanes=LOW)
        writers.wait_for(100)
        second.stop()
        wait_for_owners(conn, LOW)
        with RelayProcess(database, bootstrap_servers, "--shard", "2/2") as next_one:
            next_one.wait_for("lanes taken", lanes=HIGH)
            writers.wait_for(100)
            writers.stop()
            wait_published(conn)
            next_one.stop()
        standby.stop()
    assert not compare(read_topic(bootstrap_servers, topic), writers.committed()).broken


def test_a_relay_that_is_asked_to_drain_stands_by_in_its_next_session_too(
    database: str, bootstrap_servers: str, topic: str, conn: Connection
) -> None:
    with (
        RelayThread(database, bootstrap_servers) as first,
        RelayThread(database, bootstrap_servers) as second,
    ):
        wait_for_relays(conn, 2)
        wait_for_owners(conn, ALL)
        leader = wait_until(
            lambda: next(
                (each.session for each in (first, second) if each.session and each.session.lanes), None
            ),
            "one knows that it leads",
        )
        insert_numbered(conn, topic, 100)
        ask_to_drain(conn, leader)
        wait_until(lambda: not leader.lanes, "it gives its lanes to the other")
        wait_for_owners(conn, ALL)
        # It stays out, also under the epoch of its next session.
        conn.execute(
            "SELECT pg_terminate_backend(backend_pid) FROM outbox.lease WHERE epoch = %s", [leader.epoch]
        )
        again = "SELECT count(*) FROM outbox.lease WHERE is_draining AND epoch > 2"
        wait_until(lambda: conn.execute(again).fetchone() == (1,), "it has joined again")
        wait_published(conn)
        assert owned(conn) == [ALL]
    assert not compare(read_topic(bootstrap_servers, topic), numbered(100)).broken
