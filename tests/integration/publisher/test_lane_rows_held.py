"""An open transaction holds the row of a lane in which a key is held or released: the relay waits for nobody.

The rows are held from psql's point of view: a session of its own, an open transaction, `FOR UPDATE`.
"""

from __future__ import annotations

import time
from functools import partial

import psycopg
import pytest
from psycopg.errors import CheckViolation

from tests.support.bystander import BOUND_S, Bystander
from tests.support.kafka_records import read_topic
from tests.support.lanes import ask_to_drain
from tests.support.locks import holding
from tests.support.parking import Parking, check, relay
from tests.support.plain_inserts import Connection
from tests.support.relay_session import turn_until
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements

HOLD = "SELECT FROM outbox.lane WHERE lane = 3 FOR UPDATE"
HOLD_KEY = "SELECT FROM outbox.parked_key FOR UPDATE"
SET_ASIDE = "UPDATE outbox.message SET state = 'DEAD', remark = 'by hand' WHERE message_id = %s"
EXPIRE = "UPDATE outbox.message SET deliver_before = clock_timestamp() WHERE topic = %s AND body = %s"
FIRST = "SELECT message_id::text FROM outbox.message WHERE topic = %s ORDER BY id LIMIT 1"
CLAIMS = """
    SELECT w.reason, pg_catalog.convert_from(m.body, 'UTF8') FROM outbox.waiting w JOIN outbox.message m USING (id)
    ORDER BY w.id
"""
PUBLISHED = """
    SELECT count(*) FROM outbox.message m JOIN outbox.message_status s USING (id)
    WHERE m.topic = %s AND m.body = %s AND s.status = 'PUBLISHED'
"""
LEASE_ENDS = "UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s'"


@pytest.fixture
def bystander(parking: Parking, make_topic: MakeTopic, bootstrap_servers: str) -> Bystander:
    return Bystander(parking.conn, make_topic(partitions=1), bootstrap_servers)


def is_published(parking: Parking, key: str, version: int) -> bool:
    values = [parking.topic, f"{key}:{version}".encode()]
    return parking.conn.execute(PUBLISHED, values).fetchone() == (1,)


def claims(conn: Connection) -> list[tuple[str, str]]:
    return conn.execute(CLAIMS).fetchall()


def test_a_hold_that_cannot_be_written_holds_up_no_other_key_and_is_written_later(
    database: str, bootstrap_servers: str, parking: Parking, bystander: Bystander
) -> None:
    with RelayThread(database, bootstrap_servers) as running:
        bystander.flows()
        with holding(database, HOLD) as operator:
            parking.send(parking.bad, 0, poison=True)
            parking.send(parking.bad, 1)
            parking.send(parking.good, 0)
            bystander.flows()
            wait_until(lambda: is_published(parking, parking.good, 0), "so does another key")
            event = running.wait_for("lane row locked")
            assert f"(pid {operator.info.backend_pid}, " in event["held_by"][0]
            assert "pg_terminate_backend(pid)" in event["repair"]
            assert (parking.keys, parking.reasons) == ([], [])
        wait_until(lambda: parking.reasons == ["failed", "held"], "the hold is written")
        parking.repair()
        parking.request()
        wait_until(lambda: not parking.keys, "the key is released")
        wait_until(parking.is_done, "all is published")
        assert len(running.find("lanes taken")) == 1, "the session goes on"
    bystander.check()
    check(bootstrap_servers, parking, 2, 1)


def test_what_has_no_hold_yet_is_not_set_aside(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        with holding(database, HOLD) as operator:
            parking.send(parking.bad, 0, poison=True)
            parking.send(parking.good, 0)
            turn_until(session, lambda: session.counts.recorded == 1, "what is behind it is recorded")
            # The relay takes no turn now. (The guard asks for the lane's row.)
            operator.rollback()
            row = parking.conn.execute(FIRST, [parking.topic]).fetchone()
            assert row is not None
            with pytest.raises(CheckViolation, match="the relay may be publishing it now"):
                parking.conn.execute(SET_ASIDE, row)
        turn_until(session, lambda: parking.reasons == ["failed"], "the hold is written")
        parking.publish(session)
    check(bootstrap_servers, parking, 1, 1)


@pytest.mark.parametrize("ends", ["commits", "is killed first"])
def test_a_key_that_is_published_is_recorded_once_the_row_of_its_lane_is_free(
    database: str, bootstrap_servers: str, parking: Parking, ends: str
) -> None:
    """Where the relay dies meanwhile, its successor repeats what was not recorded, in order."""
    clean = ends == "commits"
    with psycopg.connect(database) as operator:
        with relay(database, bootstrap_servers, clean=clean) as session:
            parking.fail(session, 1, 2)
            parking.repair()
            with withheld_acknowledgements():
                parking.request()
                turn_until(
                    session, lambda: bool(read_topic(bootstrap_servers, parking.topic)), "one is in Kafka"
                )
                operator.execute(HOLD)
            turn_until(
                session, lambda: len(read_topic(bootstrap_servers, parking.topic)) == 3, "all of it is"
            )
            for version in range(3):
                parking.send(parking.good, version)
                turn_until(session, partial(is_published, parking, parking.good, version), "flows")
            assert parking.reasons == ["failed", "held", "held"], "nothing says that they are published"
            row = parking.conn.execute(FIRST, [parking.topic]).fetchone()
            if clean:
                operator.rollback()
                parking.drain(session)
                with pytest.raises(CheckViolation, match="it is published at 0/0"):
                    parking.conn.execute(SET_ASIDE, row)
        operator.rollback()
        if not clean:
            parking.conn.execute(LEASE_ENDS)
            with relay(database, bootstrap_servers) as successor:
                parking.drain(successor)
    check(bootstrap_servers, parking, 3, 3, repeated=not clean)


def test_what_expired_after_it_was_published_is_not_claimed_by_the_next_relay(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """It reads again what is behind the failure that could not be written."""
    conn = parking.conn
    with relay(database, bootstrap_servers, clean=False) as session, holding(database, HOLD):
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.good, 0)
        turn_until(session, lambda: is_published(parking, parking.good, 0), "it is published")
        assert parking.reasons == []
    conn.execute(LEASE_ENDS)
    parking.send(parking.good, 1)
    for version in (0, 1):
        conn.execute(EXPIRE, [parking.topic, f"{parking.good}:{version}".encode()])
    parking.send(parking.good, 2)
    with relay(database, bootstrap_servers) as session:
        turn_until(session, lambda: is_published(parking, parking.good, 2), "the next relay goes on")
        parking.settle(session)
        expected = [("failed", f"{parking.bad}:0"), ("expired", f"{parking.good}:1")]
        turn_until(session, lambda: claims(conn) == expected, "the failure is held, and one has expired")
    found = [record.value for record in read_topic(bootstrap_servers, parking.topic)]
    assert found == [f"{parking.good}:{version}".encode() for version in (0, 2)]


def test_a_stop_and_its_successor_do_not_wait_for_a_row(
    database: str, bootstrap_servers: str, parking: Parking, bystander: Bystander
) -> None:
    """The failure that could not be written is found again."""
    with RelayThread(database, bootstrap_servers) as first:
        bystander.flows()
        with holding(database, HOLD):
            parking.send(parking.bad, 0, poison=True)
            parking.send(parking.good, 0)
            wait_until(lambda: is_published(parking, parking.good, 0), "what is behind it is published")
            since = time.monotonic()
            first.stop()
            assert time.monotonic() - since < BOUND_S
            assert first.error is None
            with RelayThread(database, bootstrap_servers):
                bystander.flows(without=3)
    with RelayThread(database, bootstrap_servers):
        wait_until(lambda: parking.reasons == ["failed"], "it is held")
        bystander.flows()
    bystander.check()
    assert [record.value for record in read_topic(bootstrap_servers, parking.topic)] == [
        f"{parking.good}:0".encode()
    ]


@pytest.mark.parametrize("held", ["the lane's", "the key's"])
def test_lanes_are_given_to_another_relay_while_a_row_is_held(
    database: str, bootstrap_servers: str, parking: Parking, bystander: Bystander, held: str
) -> None:
    """What waits for the row keeps no other lane from its next owner."""
    with RelayThread(database, bootstrap_servers) as first:
        bystander.flows()
        parking.send(parking.bad, 0, poison=True)
        wait_until(lambda: parking.reasons == ["failed"], "a key is held")
        with holding(database, HOLD if held == "the lane's" else HOLD_KEY):
            parking.send(parking.good, 0, poison=True)
            bystander.flows()
            with RelayThread(database, bootstrap_servers) as second:
                session = wait_until(lambda: first.session, "it runs")
                ask_to_drain(parking.conn, session)
                second.wait_for("lanes taken")
                bystander.flows()
                ask_to_drain(parking.conn, session, is_draining=False)
        parking.repair()
        wait_until(lambda: parking.reasons == ["failed", "failed"], "another key is held")
        parking.request()
        wait_until(lambda: not parking.keys, "both are released")
        wait_until(parking.is_done, "all is published")
        assert not first.find("lanes lost, joining again")
    bystander.check()
    check(bootstrap_servers, parking, 1, 1)
