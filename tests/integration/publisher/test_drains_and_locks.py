"""Row locks and time-outs around a drain: the relay goes on, and no message is held for ever, or overtaken."""

from __future__ import annotations

from array import array

import psycopg
import pytest
from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.parked import KeyDrain, ParkedKeys

from outbox_relay.publisher import draining
from tests.support.kafka_records import read_topic
from tests.support.parking import Parking, check, relay, unacknowledged
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import turn_until
from tests.support.stopped_lanes import Limited

LOCK_KEY = "SELECT FROM outbox.parked_key FOR UPDATE"
LOCK_HELD = "SELECT FROM outbox.waiting FOR UPDATE"
ANNOUNCED = "SELECT count(*) FROM outbox.parked_key WHERE draining_at IS NOT NULL"


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
            session._drain_at = 0.0
            session.run_once(0.001)
            assert len(parking.keys) == 1
        session._drain_at = 0.0
        parking.drain(session)
    found = read_topic(bootstrap_servers, parking.topic)
    assert [record.value for record in found if record.key == parking.bad.encode()] == [
        f"{parking.bad}:{version}".encode() for version in (0, 2)
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_a_lock_of_a_key_that_is_being_drained_does_not_stop_the_relay(
    database: str, bootstrap_servers: str, parking: Parking, *, fails: bool
) -> None:
    """An operator's open transaction: what was published is recorded, and the key stays parked until it ends."""
    with relay(database, bootstrap_servers) as session, connect(database) as operator:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(session)
        if not fails:
            parking.repair()
        publish_held = session._publish_held
        locked = False

        def lock_and_publish(drain: KeyDrain, ids: array[int], most: int) -> None:
            nonlocal locked
            if not locked and (fails or not ids):
                locked = True
                operator.execute("BEGIN")
                operator.execute("SELECT FROM outbox.parked_key FOR UPDATE")
            publish_held(drain, ids, most)

        session._publish_held = lock_and_publish
        parking.request(session)
        turn_until(session, lambda: locked, "the drain ends while the row is locked")
        parking.send(parking.good, 0)
        parking.settle(session)
        parking.send(parking.bad, 1)
        parking.send(parking.good, 1)
        turn_until(session, lambda: "held" in parking.reasons, "what follows is held")
        parking.settle(session)
        assert len(parking.keys) == 1
        operator.execute("COMMIT")
        if fails:
            over = "SELECT count(*) FROM outbox.parked_key WHERE requested_at IS NULL AND draining_at IS NULL"
            turn_until(session, lambda: parking.conn.execute(over).fetchone() == (1,), "it fails again")
            parking.repair()
            parking.request(session)
        parking.drain(session)
    check(bootstrap_servers, parking, 2, 2)


def test_a_message_cannot_be_given_up_while_its_drain_is_announced(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers, clean=False) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.settle(session)
        parking.request()
        drain = session._parked.requested([3])
        assert drain is not None
        assert session._parked.announce(drain, 1)
        with pytest.raises(psycopg.errors.CheckViolation, match="trying its key again"):
            parking.conn.execute(
                "UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [parking.head]
            )
    with relay(database, bootstrap_servers) as successor:
        assert parking.doubtful == [True]
        with pytest.raises(psycopg.errors.CheckViolation, match="may be in Kafka already"):
            parking.conn.execute(
                "UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [parking.head]
            )
        parking.conn.execute(
            "UPDATE outbox.message SET state = 'SKIPPED' WHERE message_id = %s", [parking.head]
        )
        parking.drain(successor)


@pytest.mark.parametrize("page", [1, 2, 3])
def test_a_lock_while_a_page_of_a_drain_is_recorded_holds_up_nothing_later(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """A page in the middle is recorded while the row is locked; the lock ends before the next page is announced."""
    monkeypatch.setattr(draining, "DRAIN_PAGE", 2)
    with relay(database, bootstrap_servers) as session, connect(database) as operator:
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.bad, *range(1, 7))
        parking.settle(session)
        parking.repair()
        publish_held, announce = session._publish_held, ParkedKeys.announce
        pages: list[int] = []

        def lock_and_publish(drain: KeyDrain, ids: array[int], most: int) -> None:
            if drain.pages == page:
                operator.execute("BEGIN")
                operator.execute(LOCK_KEY)
            pages.append(len(ids))
            publish_held(drain, ids, most)

        def unlock_and_announce(keys: ParkedKeys, drain: KeyDrain, most: int) -> array[int] | None:
            if drain.pages == page + 1:
                operator.execute("COMMIT")
            return announce(keys, drain, most)

        session._publish_held = lock_and_publish
        monkeypatch.setattr(ParkedKeys, "announce", unlock_and_announce)
        parking.request(session)
        parking.drain(session)
        assert pages == [1, 2, 2, 2, 0]
        parking.send(parking.bad, 7, 8)
        parking.settle(session)
        assert parking.reasons == [], "what follows the drain is not held under a key that is gone"
    check(bootstrap_servers, parking, 9, 0)


def test_a_clean_stop_ends_the_announcement_of_a_drain_that_was_put_off(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is on the wire after a clean stop, so that a message of the key can be given up."""
    monkeypatch.setattr(draining, "DRAIN_PAGE", 2)
    with connect(database) as operator:
        with relay(database, bootstrap_servers) as session:
            parking.fail(session, 1, 2, 3, 4)
            parking.repair()
            parking.request(session)
            turn_until(session, lambda: parking.reasons == ["held"] * 4, "the head is drained, alone")
            operator.execute("BEGIN")
            operator.execute(LOCK_KEY)
            turn_until(session, lambda: session._drain is None, "the next page is not announced")
            parking.send(parking.bad, 5)
            turn_until(session, lambda: parking.reasons == ["held"] * 5, "what follows is held")
            assert parking.conn.execute(ANNOUNCED).fetchone() == (1,)
            operator.execute("COMMIT")
        assert parking.conn.execute(ANNOUNCED).fetchone() == (0,)
        assert parking.doubtful == [False] * 5
        with relay(database, bootstrap_servers) as successor:
            parking.drain(successor)
    check(bootstrap_servers, parking, 6, 0)


def test_a_drain_whose_record_is_withheld_is_done_again_by_the_next_session(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand in the tables locks what is held between two pages, and the relay dies before it is free."""
    monkeypatch.setattr(draining, "DRAIN_PAGE", 2)
    with connect(database) as operator:
        with relay(database, bootstrap_servers, clean=False) as session:
            parking.fail(session, 1, 2, 3, 4)
            parking.repair()
            parking.request(session)
            turn_until(session, lambda: parking.reasons == ["held"] * 4, "the head is drained, alone")
            operator.execute("BEGIN")
            operator.execute(LOCK_HELD)
            turn_until(session, lambda: 3 in session._recorder.withheld.lanes, "a page is published")
            operator.execute("COMMIT")
            parking.send(parking.bad, 5)
        with relay(database, bootstrap_servers) as successor:
            parking.drain(successor)
    check(bootstrap_servers, parking, 6, 0, repeated=True)


def test_a_stopped_lane_waits_for_the_last_page_of_a_drain_of_its_keys(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it read then would be held under a key that is gone."""
    limited = Limited(parking.conn, bootstrap_servers, monkeypatch)
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.bad, 1, 2)
        insert(parking.conn, limited.name, limited.key(3), b"stops its lane", lane=3)
        parking.send(parking.bad, 3)
        turn_until(
            session,
            lambda: bool(session.stopped) and len(parking.reasons) == 3,
            "the lane stops in front of 3",
        )
        parking.repair()
        limited.repair()
        note, take = session._note_drained, session._publisher.take_acknowledged
        last: list[Batch] = []

        def set_aside_at_the_end(drain: KeyDrain, part: KeyDrain, batch: Batch) -> None:
            note(drain, part, batch)
            if part.is_all and batch.messages:
                last.append(batch)
                unacknowledged(session)
                session._set_aside({drain.lane})

        session._note_drained = set_aside_at_the_end
        parking.request(session)
        turn_until(session, lambda: bool(last), "the last page is on the wire")
        polls = session.counts.polls
        session._stops.hurry([3])
        turn_until(session, lambda: session.counts.polls >= polls + 5, "some turns are over")
        assert parking.reasons == ["held", "held"], "they are on the wire, and nothing joined them"
        session._publisher.take_acknowledged = take
        parking.drain(session)
        parking.send(parking.bad, 4)
        parking.settle(session)
        assert parking.reasons == []
    check(bootstrap_servers, parking, 5, 0)
