"""Rows that an open transaction holds when lanes are taken, or given back at a stop: no relay waits for them."""

from __future__ import annotations

import time

import pytest
from psycopg import sql

from outbox_relay.publisher import lease
from tests.support.bystander import BOUND_S, Bystander
from tests.support.lanes import take
from tests.support.locks import holding
from tests.support.parking import Parking, relay
from tests.support.plain_inserts import connect
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic

LANE = 3
LEASES = "SELECT FROM outbox.lease FOR UPDATE"
WITHOUT_LEASE = "SELECT count(*) FROM outbox.lane WHERE owner IS NULL"


@pytest.mark.parametrize("held", ["one of them", "all of them"])
def test_what_waits_and_is_held_after_a_failover_keeps_its_lane_only(
    database: str, bootstrap_servers: str, parking: Parking, make_topic: MakeTopic, held: str
) -> None:
    """It has to be marked as in doubt before its lane is taken: a message that Kafka may have is not to become DEAD."""
    conn = parking.conn
    bystander = Bystander(conn, make_topic(partitions=1), bootstrap_servers)
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2)
    conn.execute("UPDATE outbox.lane SET timeline = timeline + 1")
    row = conn.execute("SELECT max(id) FROM outbox.waiting").fetchone()
    assert row is not None
    which = sql.SQL("SELECT FROM outbox.waiting WHERE id >= {} FOR UPDATE").format(
        row[0] if held == "one of them" else 0
    )
    with RelayThread(database, bootstrap_servers) as running:
        with holding(database, which.as_string()) as operator:
            bystander.flows(without=LANE)
            event = running.wait_for("lane row locked", lanes=[LANE])
            assert f"(pid {operator.info.backend_pid}, " in event["held_by"][0]
            bystander.flows(without=LANE)
        bystander.flows()
        assert parking.doubtful == [True] * 3
    assert running.error is None
    bystander.check()


def test_after_a_restore_nothing_is_taken_until_all_that_waits_is_in_doubt(
    database: str, bootstrap_servers: str, parking: Parking, make_topic: MakeTopic
) -> None:
    """Once the messages have xids of this cluster nothing shows any more that they were restored."""
    conn = parking.conn
    bystander = Bystander(conn, make_topic(partitions=1), bootstrap_servers)
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2)
    conn.execute("UPDATE outbox.message SET xid = (xid::text::bigint + 1000000000)::text::xid8")
    with RelayThread(database, bootstrap_servers) as running:
        with holding(database, "SELECT FROM outbox.waiting FOR UPDATE"):
            running.wait_for("lane row locked")
            assert not running.find("lanes taken")
        bystander.flows()
        assert parking.doubtful == [True] * 3
        assert len(running.find("messages of another cluster enqueued")) == 1
    bystander.check()


def test_a_lease_whose_row_is_held_holds_up_no_stop_and_no_successor(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    with connect(database) as conn:
        bystander = Bystander(conn, make_topic(partitions=1), bootstrap_servers)
        with RelayThread(database, bootstrap_servers) as first:
            bystander.flows()
            with holding(database, LEASES):
                bystander.flows()
                since = time.monotonic()
                first.stop()
                assert time.monotonic() - since < BOUND_S
                assert first.error is None
                assert conn.execute(WITHOUT_LEASE).fetchone() == (8,), "its lanes are given back"
                with RelayThread(database, bootstrap_servers) as second:
                    bystander.flows()
                assert second.error is None
        with RelayThread(database, bootstrap_servers):
            bystander.flows()
            assert conn.execute("SELECT count(*) FROM outbox.lease").fetchone() == (1,), (
                "what is free is cleared"
            )
        bystander.check()


def test_a_stop_does_not_wait_for_a_lock_of_the_leases(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    """The lanes are left as by a relay that dies: to whoever comes, once that lock is gone."""
    with connect(database) as conn:
        bystander = Bystander(conn, make_topic(partitions=1), bootstrap_servers)
        with RelayThread(database, bootstrap_servers) as first:
            bystander.flows()
            with holding(database, "LOCK TABLE outbox.lease IN SHARE ROW EXCLUSIVE MODE"):
                since = time.monotonic()
                first.stop()
                assert time.monotonic() - since < BOUND_S
            assert first.error is None
            assert first.find("lanes not given back")
        with RelayThread(database, bootstrap_servers):
            bystander.flows()
        bystander.check()


def test_a_taker_does_not_wait_for_its_own_lease(database: str) -> None:
    """It holds the lock by which all others renew theirs."""
    with connect(database) as conn:
        mine = lease.join(conn, "me", 60)
        with holding(database, LEASES):
            since = time.monotonic()
            with pytest.raises(lease.LanesLockedError):
                mine.take(conn, range(8))
            assert time.monotonic() - since < 1.0
        assert set(mine.take(conn, range(8)).floors) == set(range(8))
        mine.release(conn)
        assert take(conn, "next", 60).lanes == frozenset(range(8))
