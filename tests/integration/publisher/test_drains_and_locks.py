"""Row locks around a drain: the relay goes on, and no message is held for ever, or overtaken."""

from __future__ import annotations

import time

import psycopg
import pytest

from outbox_relay.publisher.hands import writes
from tests.support.kafka_records import read_topic
from tests.support.parking import Parking, check, relay
from tests.support.plain_inserts import connect
from tests.support.relay_session import loop_of, turn_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements

LOCK_KEY = "SELECT FROM outbox.parked_key FOR UPDATE"
LOCK_HELD = "SELECT FROM outbox.waiting FOR UPDATE"
ANNOUNCED = "SELECT count(*) FROM outbox.parked_key WHERE draining_at IS NOT NULL"
GIVE_UP = "UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s"
BOUND_S = 15.0
"""In which a message of another key is published, on a machine that is busy."""


def test_an_operators_lock_does_not_stop_the_relay(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session, connect(database) as operator:
        parking.send(parking.bad, 0)
        parking.send(parking.bad, 1, poison=True)
        parking.settle(session)
        with operator.transaction():
            operator.execute("UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [parking.head])
            parking.send(parking.bad, 2)
            parking.send(parking.good, 0, 1)
            turn_until(session, lambda: parking.reasons == ["failed", "held"], "a claim is written")
            parking.settle(session)
            assert len(parking.keys) == 1
        parking.drain(session)
    found = read_topic(bootstrap_servers, parking.topic)
    assert [record.value for record in found if record.key == parking.bad.encode()] == [
        f"{parking.bad}:{version}".encode() for version in (0, 2)
    ]


@pytest.mark.parametrize("lock", [LOCK_KEY, LOCK_HELD])
@pytest.mark.parametrize("fails", [False, True])
def test_a_lock_of_a_key_that_is_being_drained_holds_up_no_other_key(
    database: str, bootstrap_servers: str, parking: Parking, lock: str, *, fails: bool
) -> None:
    """An operator's open transaction: the key stays parked until it ends, and then goes on in order."""
    with relay(database, bootstrap_servers) as session, connect(database) as operator:
        parking.fail(session, 1)
        if not fails:
            parking.repair()
        with withheld_acknowledgements():
            parking.request()
            if not fails:
                turn_until(
                    session, lambda: loop_of(session).wires.unacknowledged > 0, "the head is on the wire"
                )
            operator.execute("BEGIN")
            operator.execute(lock.encode())
        began = time.monotonic()
        parking.send(parking.bad, 2)
        parking.send(parking.good, 0, 1)
        turn_until(
            session, lambda: len(read_topic(bootstrap_servers, parking.topic)) >= 2, "others are published"
        )
        assert time.monotonic() - began < BOUND_S
        assert len(parking.keys) == 1
        operator.execute("COMMIT")
        parking.publish(session)
    check(bootstrap_servers, parking, 3, 2)


def test_a_message_cannot_be_given_up_while_its_drain_is_announced(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers, clean=False) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(session)
        head = parking.head
        parking.repair()
        parking.request()
        with withheld_acknowledgements():
            turn_until(session, lambda: loop_of(session).wires.unacknowledged > 0, "it is on the wire")
            with pytest.raises(psycopg.errors.CheckViolation, match="trying its key again"):
                parking.conn.execute(GIVE_UP, [head])
    with relay(database, bootstrap_servers) as successor:
        turn_until(successor, lambda: parking.doubtful == [True], "what was announced is in doubt")
        with pytest.raises(psycopg.errors.CheckViolation, match="may be in Kafka already"):
            parking.conn.execute(GIVE_UP, [head])
        parking.conn.execute("UPDATE outbox.message SET state = 'SKIPPED' WHERE message_id = %s", [head])
        parking.drain(successor)


def test_a_lock_while_a_page_of_a_drain_is_recorded_holds_up_nothing_later(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is locked for a while in the middle of the pages; what joins the key meanwhile follows in order."""
    monkeypatch.setattr(writes, "HOLD_PAGE", 2)
    with relay(database, bootstrap_servers) as session, connect(database) as operator:
        parking.fail(session, *range(1, 6))
        parking.repair()
        parking.request()
        turn_until(session, lambda: len(parking.reasons) < 6, "a page is recorded")
        operator.execute("BEGIN")
        operator.execute(LOCK_KEY)
        parking.send(parking.bad, 6)
        parking.send(parking.good, 0)
        turn_until(
            session,
            lambda: (
                parking.good.encode()
                in {record.key for record in read_topic(bootstrap_servers, parking.topic)}
            ),
            "another key is published",
        )
        operator.execute("COMMIT")
        parking.drain(session)
    check(bootstrap_servers, parking, 7, 1)


def test_a_clean_stop_ends_the_announcement_of_a_drain_that_is_put_off(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is on the wire after a clean stop, so that a message of the key can be given up."""
    monkeypatch.setattr(writes, "HOLD_PAGE", 2)
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2, 3, 4)
        parking.repair()
        parking.request()
        turn_until(session, lambda: len(parking.reasons) < 5, "a page is recorded")
    assert parking.conn.execute(ANNOUNCED).fetchone() == (0,)
    assert not any(parking.doubtful)
    with relay(database, bootstrap_servers) as successor:
        parking.drain(successor)
    check(bootstrap_servers, parking, 5, 0)


def test_a_drain_whose_record_is_withheld_is_done_again_by_the_next_session(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand in the tables locks what is held between two pages, and the relay dies before it is free."""
    monkeypatch.setattr(writes, "HOLD_PAGE", 2)
    with connect(database) as operator:
        with relay(database, bootstrap_servers, clean=False) as session:
            parking.fail(session, 1, 2, 3, 4)
            parking.repair()
            operator.execute("BEGIN")
            parking.request()
            turn_until(session, lambda: len(parking.reasons) < 5, "a page is recorded")
            operator.execute(LOCK_HELD)
            turn_until(session, lambda: loop_of(session).writes.is_refused, "a page cannot be recorded")
            operator.execute("COMMIT")
            parking.send(parking.bad, 5)
        with relay(database, bootstrap_servers) as successor:
            parking.drain(successor)
    check(bootstrap_servers, parking, 6, 0, repeated=True)
