"""What holds its key is set aside by an operator while the relay publishes it after all: one of them, in either order.

The dangerous schedule: the cause is repaired, the relay reads the message and gives it to Kafka, an operator makes it
DEAD, and the publication is recorded afterwards. The relay's announcement in outbox.parked_key and the operator's lock
on that row exclude it.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg.errors import CheckViolation

from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.lanes import take
from tests.support.parking import Parking, relay
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes
from tests.support.relay_session import relay_session, turn_until
from tests.support.stopped_lanes import stop_lane
from tests.support.withheld_acknowledgements import withheld_acknowledgements

SET_ASIDE = "UPDATE outbox.message SET state = 'DEAD', remark = 'by hand' WHERE message_id = %s"
RETRY = "UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s"
STATUS = "SELECT status FROM outbox.message_status WHERE message_id = %s"
MESSAGES = "SELECT message_id::text FROM outbox.message WHERE topic = %s ORDER BY id"
ANNOUNCED = "SELECT count(*) FROM outbox.parked_key WHERE draining_at IS NOT NULL"
LEASE_ENDS = "UPDATE outbox.lease SET leased_until = clock_timestamp() - interval '1 s'"


def status(conn: Connection, message_id: str) -> str:
    row = conn.execute(STATUS, [message_id]).fetchone()
    assert row is not None
    return str(row[0])


def hold(session: Session, parking: Parking) -> tuple[str, str]:
    """Write two messages of one key, of which the first cannot be published; return them when they wait."""
    parking.fail(session, 1)
    first, second = (row[0] for row in parking.conn.execute(MESSAGES, [parking.topic]))
    return first, second


def announced(parking: Parking) -> bool:
    return parking.conn.execute(ANNOUNCED).fetchone() == (1,)


def versions(bootstrap_servers: str, parking: Parking, key: str) -> list[int]:
    """The versions of a key in Kafka, in order."""
    found = [record.value for record in read_topic(bootstrap_servers, parking.topic)]
    own = [value for value in found if value and value.startswith(f"{key}:".encode())]
    return [int(value.partition(b":")[2]) for value in own]


def test_what_the_relay_tries_again_is_not_set_aside(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        first, second = hold(session, parking)
        parking.repair()
        parking.request()
        with withheld_acknowledgements():
            turn_until(session, lambda: announced(parking), "it is announced")
            for _ in range(2):  # at once, and when Kafka has it
                with pytest.raises(CheckViolation, match="is trying its key again; repeat in a few seconds"):
                    parking.conn.execute(SET_ASIDE, [first])
                turn_until(
                    session, lambda: bool(read_topic(bootstrap_servers, parking.topic)), "it is in Kafka"
                )
        parking.drain(session)
        assert status(parking.conn, second) == "PUBLISHED"
        # Recorded: refused for good, and by its place.
        with pytest.raises(CheckViolation, match=r"it is published at 0/0"):
            parking.conn.execute(SET_ASIDE, [first])
    assert versions(bootstrap_servers, parking, parking.bad) == [0, 1]


def test_what_is_being_set_aside_is_not_tried_again(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with psycopg.connect(database) as operator, relay(database, bootstrap_servers) as session:
        first, second = hold(session, parking)
        parking.repair()
        parking.request()  # the relay has not read that yet
        operator.execute(SET_ASIDE, [first])
        for version in range(20):
            parking.send(parking.good, version)
            parking.settle(session)
        assert not announced(parking)
        assert versions(bootstrap_servers, parking, parking.bad) == []
        operator.commit()
        parking.drain(session)
        assert (status(parking.conn, first), status(parking.conn, second)) == ("DEAD", "PUBLISHED")
    assert versions(bootstrap_servers, parking, parking.bad) == [1]
    assert versions(bootstrap_servers, parking, parking.good) == list(range(20))


def test_a_key_goes_on_soon_after_its_message_is_set_aside(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """The trigger asks for it: nobody else does."""
    conn = parking.conn
    with relay(database, bootstrap_servers) as session:
        bad, good = hold(session, parking)
        conn.execute(SET_ASIDE, [bad])
        turn_until(session, lambda: status(conn, good) == "PUBLISHED", "the key goes on")
        parking.drain(session)
        # Tried again at the end of the order, where it holds its key again; and given up.
        conn.execute(RETRY, [bad])
        turn_until(session, lambda: parking.reasons == ["failed"], "it holds its key again")
        conn.execute(SET_ASIDE, [bad])
        conn.execute("UPDATE outbox.message SET state = 'SKIPPED' WHERE message_id = %s", [bad])
        with pytest.raises(CheckViolation, match="is SKIPPED and cannot become COMMITTED"):
            conn.execute(RETRY, [bad])
        parking.drain(session)


def test_a_retried_message_takes_its_place_when_it_is_retried(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    conn = parking.conn
    with relay(database, bootstrap_servers) as session:
        first, second = hold(session, parking)
        conn.execute(SET_ASIDE, [first])
        parking.repair()
        turn_until(session, lambda: status(conn, second) == "PUBLISHED", "the key goes on")
        conn.execute(RETRY, [first])
        turn_until(session, lambda: status(conn, first) == "PUBLISHED", "it is published after all")
    assert versions(bootstrap_servers, parking, parking.bad) == [1, 0]


def test_a_message_that_waits_for_nothing_is_not_set_aside(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """A relay may be publishing it at that moment; also one of a key that is held, before its claim is written."""
    with relay(database, bootstrap_servers) as session:
        hold(session, parking)
        for key in (parking.good, parking.bad):
            parking.send(key, 2)
            (*_, (last,)) = parking.conn.execute(MESSAGES, [parking.topic]).fetchall()
            with pytest.raises(CheckViolation, match="the relay may be publishing it now"):
                parking.conn.execute(SET_ASIDE, [last])
        parking.publish(session)


def test_after_a_clean_stop_what_was_tried_in_vain_can_be_set_aside(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        first, second = hold(session, parking)
        parking.request()
        turn_until(session, lambda: announced(parking), "it is announced")
    assert not announced(parking)
    parking.conn.execute(SET_ASIDE, [first])
    with relay(database, bootstrap_servers) as session:
        turn_until(session, lambda: status(parking.conn, second) == "PUBLISHED", "the next relay goes on")
    assert versions(bootstrap_servers, parking, parking.bad) == [1]


def test_after_a_relay_died_in_a_drain_nothing_is_set_aside_until_the_next_one_read(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    conn = parking.conn
    with withheld_acknowledgements(), relay(database, bootstrap_servers, clean=False) as session:
        first, _ = hold(session, parking)
        parking.repair()
        parking.request()
        turn_until(session, lambda: bool(read_topic(bootstrap_servers, parking.topic)), "it is in Kafka")
    conn.execute(LEASE_ENDS)
    with pytest.raises(CheckViolation, match="has ended, and has not recorded") as caught:
        conn.execute(SET_ASIDE, [first])
    assert "outbox relay run" in str(caught.value.diag.message_hint)
    with relay(database, bootstrap_servers) as session:
        turn_until(session, lambda: status(conn, first) == "PUBLISHED", "it is published")
        with pytest.raises(CheckViolation, match=r"it is published at 0/\d"):
            conn.execute(SET_ASIDE, [first])
        parking.drain(session)
    found = versions(bootstrap_servers, parking, parking.bad)
    assert list(dict.fromkeys(found)) == [0, 1]


def test_what_a_lane_stopped_at_is_not_set_aside_while_it_is_tried_again(conn: Connection) -> None:
    """As a relay of an earlier version left it."""
    (key,) = keys_of_lanes(conn, "t", 5)
    message_id = insert(conn, "t", key, b"x")
    take(conn, "owner", 60)
    stop_lane(conn, 1)
    conn.execute("UPDATE outbox.lane SET retrying_at = clock_timestamp() WHERE lane = 5")
    with pytest.raises(CheckViolation, match="lane 5 is trying it again; repeat in a few seconds"):
        conn.execute(SET_ASIDE, [message_id])


def test_a_published_message_becomes_dead_for_nobody(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    """Also where outbox.lane claims that its lane is stopped at it, and it waits."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        message_id = insert(conn, topic, "k", b"x")
        turn_until(session, lambda: status(conn, message_id) == "PUBLISHED", "it is published")
        for lie in (
            "SELECT",
            """
            UPDATE outbox.lane l SET stopped_error = 'x', stopped_message = m.message_id
            FROM outbox.message m WHERE l.lane = m.lane
            """,
            "INSERT INTO outbox.waiting (id, message_id, reason) SELECT id, message_id, 'parked' FROM outbox.message",
        ):
            conn.execute(lie.encode())
            with pytest.raises(CheckViolation, match=r"it is published at \d/0"):
                conn.execute(SET_ASIDE, [message_id])
