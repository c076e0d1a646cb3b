"""A message that cannot be published parks its own key; what is behind it waits, in order, and all else flows."""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial

import psycopg
import pytest

from outbox_relay.publisher import loop, opening
from outbox_relay.publisher.core.values import Limits, Scope
from outbox_relay.publisher.hands.hold_rows import HoldRows
from outbox_relay.publisher.hands.writes import STATEMENTS
from outbox_relay.publisher.lease import STATEMENTS as LANES
from outbox_relay.publisher.lease import LeaseLostError
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.locks import holding
from tests.support.misread_limits import misread_limits
from tests.support.parking import LIMIT, Parking, check, relay
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import turn_until
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements

IS_PUBLISHED = """
    SELECT count(*) FROM outbox.message m JOIN outbox.message_status s USING (id)
    WHERE m.topic = %s AND m.body = %s AND s.status = 'PUBLISHED'
"""


def test_a_message_that_cannot_be_published_parks_its_own_key_only(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        for version in range(4):
            parking.send(parking.bad, version, poison=version == 1)
            parking.send(parking.good, version)
        parking.settle(session)
        assert parking.reasons == ["failed", "held", "held"]
        ((name, key, error),) = parking.keys
        assert (name, key) == (parking.topic, parking.bad.encode())
        assert error.startswith("MESSAGE_TOO_LARGE")
        status = "SELECT status FROM outbox.message_status WHERE waiting = 'failed'"
        assert parking.conn.execute(status).fetchall() == [("DEAD",)]
        check(bootstrap_servers, parking, 1, 4)

        parking.send(parking.bad, 4)
        turn_until(session, lambda: len(parking.reasons) == 4, "a message sent later is held, too")
        parking.repair()
        parking.request()
        parking.send(parking.bad, 5)
        parking.drain(session)
        parking.send(parking.bad, 6)
        parking.settle(session)
    check(bootstrap_servers, parking, 7, 4)


def test_requests_are_read_only_while_a_key_is_held(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    requested = HoldRows.requested

    def count(holds: HoldRows, passed: Collection[Scope]) -> dict[Scope, float]:
        nonlocal read
        read += 1
        return requested(holds, passed)

    monkeypatch.setattr(HoldRows, "requested", count)
    monkeypatch.setattr(loop, "SIGNALS_EVERY_S", 0.0)
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.good, 0)
        parking.settle(session)
        assert read == 0
        parking.fail(session)
        parking.publish(session)
        assert read > 0
        parking.settle(session)
        read = 0
        parking.send(parking.good, 1)
        parking.settle(session)
        assert read == 0


def test_claims_and_progress_are_one_statement(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.bad, 0)
        parking.settle(session)
        with parking.conn.transaction():
            parking.send(parking.good, 0)
            parking.send(parking.bad, 1, poison=True)
            parking.send(parking.bad, 2)
        parking.settle(session)
        writers = parking.conn.execute(
            "SELECT xmin::text FROM outbox.waiting UNION SELECT xmin::text FROM outbox.parked_key "
            "UNION (SELECT xid::text FROM outbox.publication ORDER BY epoch DESC, batch DESC LIMIT 1)"
        ).fetchall()
        assert len(writers) == 1


def test_claims_wait_for_the_acks_in_front(database: str, bootstrap_servers: str, parking: Parking) -> None:
    with withheld_acknowledgements(), relay(database, bootstrap_servers, clean=False) as session:
        with parking.conn.transaction():
            parking.send(parking.bad, 0)
            parking.send(parking.bad, 1, poison=True)
            parking.send(parking.bad, 2)
        turn_until(session, lambda: session.counts.published == 1, "the first is on the wire")
        # Its barrier is a commit after the poisonous message was read.
        parking.send(parking.good, 0)
        turn_until(session, lambda: session.counts.published == 2, "the next batch is on the wire")
        assert (parking.keys, parking.reasons) == ([], [])
    with relay(database, bootstrap_servers) as successor:
        parking.settle(successor)
        assert parking.reasons == ["failed", "held"]
        parking.repair()
        parking.request()
        parking.drain(successor)
    check(bootstrap_servers, parking, 3, 1, repeated=True)


def test_parked_keys_outlive_their_relay(database: str, bootstrap_servers: str, parking: Parking) -> None:
    with relay(database, bootstrap_servers, clean=False) as session:
        parking.send(parking.bad, 0)
        parking.send(parking.bad, 1, poison=True)
        turn_until(session, lambda: bool(parking.keys), "the key is parked")
    parking.repair()
    parking.send(parking.bad, 2)
    with relay(database, bootstrap_servers) as successor:
        turn_until(successor, lambda: parking.reasons == ["failed", "held"], "what follows is held")
        parking.settle(successor)
        parking.request()
        parking.drain(successor)
    check(bootstrap_servers, parking, 3, 0, repeated=True)


def test_a_take_over_between_check_and_claim_refuses_the_claim(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    errors: list[Exception] = []

    def turns(session: Session) -> None:
        try:
            while True:
                session.run_once(0.001)
        except LeaseLostError as error:
            errors.append(error)

    with relay(database, bootstrap_servers, clean=False) as session, connect(database) as taker:
        parking.send(parking.bad, 0)
        parking.settle(session)
        with taker.transaction():
            taker.execute("SELECT lane FROM outbox.lane WHERE lane = 3 FOR UPDATE")
            taker.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another' WHERE lane = 3")
            parking.send(parking.bad, 1, poison=True)
            thread = threading.Thread(target=turns, args=[session], daemon=True)
            thread.start()
            parking.send(parking.good, 0)
            values = [parking.topic, f"{parking.good}:0".encode()]
            wait_until(lambda: taker.execute(IS_PUBLISHED, values).fetchone() == (1,), "another key flows")
            assert (parking.keys, parking.reasons) == ([], []), "the claim is not written meanwhile"
        thread.join(60)
        assert len(errors) == 1
        assert (parking.keys, parking.reasons) == ([], [])


def test_a_lane_is_not_taken_while_a_claim_is_written(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with connect(database) as owner, connect(database) as taker:
        owner.execute("UPDATE outbox.lane SET epoch = 7, owner = 'owner'")
        hold = {
            "numbers": [1], "lanes": [3], "topics": ["t"], "parts": [None], "partitions": [None], "selectors": [None],
            "queues": [None], "order_keys": [b"k"],
            "heads": [1], "errors": ["e"],
        }  # fmt: skip
        claim = {
            "ids": [1], "message_ids": ["0" * 32], "reasons": ["failed"], "numbers": [1], "places": [1],
            "doubtful": [False],
        }  # fmt: skip
        own = {"epoch": 7, "owner": "owner", "mine": [3]}
        lock = {"lanes": [3], "owner": "taker", "epoch": 8}
        with owner.transaction():
            assert owner.execute(STATEMENTS["own"], own).fetchone() == (1,)
            owner.execute(STATEMENTS["begin_holds"], hold)
            assert owner.execute(STATEMENTS["claim"], claim).rowcount == 1
            assert taker.execute(LANES["lock_free"], lock).fetchall() == []
        assert taker.execute(LANES["lock_free"], lock).fetchall() == [(3,)]
        assert len(parking.keys) == 1
        with owner.transaction(), pytest.raises(psycopg.errors.UniqueViolation):
            owner.execute(STATEMENTS["begin_holds"], hold)


def test_a_message_without_a_key_parks_nothing(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    with relay(database, bootstrap_servers) as session:
        much = '{"much": "%s"}' % ("x" * LIMIT)
        insert(parking.conn, parking.topic, None, "0", lane=3, headers=much)
        insert(parking.conn, parking.topic, None, "1", lane=3)
        parking.settle(session)
        assert parking.reasons == ["failed"]
        assert parking.keys[0][1] is None
        parking.repair()
        parking.request()
        parking.drain(session)
    assert [record.value for record in read_topic(bootstrap_servers, parking.topic)] == [b"1", b"0"]


def test_rows_of_a_key_that_state_different_lanes_are_held_in_each_of_them(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """Each lane may have a relay of its own, which knows the keys of its lanes only."""
    much = '{"much": "%s"}' % ("x" * LIMIT)
    with relay(database, bootstrap_servers) as session:
        for number, lane in enumerate((2, 5)):
            insert(parking.conn, parking.topic, "k", f"k:{2 * number}", lane=lane, headers=much)
            insert(parking.conn, parking.topic, "k", f"k:{2 * number + 1}", lane=lane)
        parking.settle(session)
        assert parking.reasons == ["failed", "held", "held", "held"]
        lanes = parking.conn.execute("SELECT lane FROM outbox.parked_key ORDER BY 1").fetchall()
        assert lanes == [(2,), (5,)]
        parking.publish(session)
    found = [record.value for record in read_topic(bootstrap_servers, parking.topic)]
    assert found == [b"k:0", b"k:1", b"k:2", b"k:3"]


@pytest.mark.parametrize("together", [1, 2, 3, 4])
def test_a_message_that_the_broker_refuses_parks_its_key(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
    together: int,
) -> None:
    """The relay takes the topic's limit for a higher one than it is, as after a change behind its back.

    However many messages a request has: those of the refused one are certain, those of the others in doubt.
    """
    misread_limits(monkeypatch)
    requests = {"batch.num.messages": str(together)}
    with connect(database) as conn, relay(database, bootstrap_servers, kafka=requests) as session:
        parking = Parking(conn, make_topic(partitions=1, max_message_bytes=str(LIMIT)))
        parking.send(parking.bad, 0)
        parking.settle(session)
        with conn.transaction():
            parking.send(parking.bad, 1, poison=True)
            parking.send(parking.bad, 2)
            parking.send(parking.good, 0, 1)
        turn_until(session, lambda: parking.reasons == ["failed", "held"], "the key is parked")
        parking.settle(session)
        assert parking.keys[0][2].startswith("MSG_SIZE_TOO_LARGE")
        # Those behind it are in doubt where they had gone out in requests of their own.
        assert not parking.doubtful[0], "the broker has refused it each time"
        tries = "SELECT tries FROM outbox.parked_key WHERE requested_at IS NULL"
        parking.request()
        turn_until(session, lambda: conn.execute(tries).fetchone() == (1,), "the broker refuses it again")
        assert parking.reasons == ["failed", "held"]
        assert not parking.doubtful[0]
        conn.execute("UPDATE outbox.message SET state = 'DEAD' WHERE message_id = %s", [parking.head])
        parking.drain(session)
        found = read_topic(bootstrap_servers, parking.topic)
        order = [record.value for record in found if record.key == parking.bad.encode()]
        assert list(dict.fromkeys(order)) == [f"{parking.bad}:{version}".encode() for version in (0, 2)]


def test_a_topic_with_too_many_held_keys_is_held_itself(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a take-over, which counts what is held."""
    monkeypatch.setattr(opening, "Limits", partial(Limits, holds=1))
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
    with relay(database, bootstrap_servers) as session:
        parking.send(parking.good, 0, poison=True)
        parking.send(parking.good, 1)
        turn_until(session, lambda: parking.reasons == ["failed", "held", "parked", "parked"], "it is held")
        error = str(parking.keys[0][2])
        assert error.startswith("TOO_MANY_PARKED: the topic has too many held keys: MESSAGE_TOO_LARGE")
        parking.repair()
        turn_until(session, lambda: parking.reasons == ["failed", "held"], "the topic follows by itself")
        parking.publish(session)
    check(bootstrap_servers, parking, 2, 2)


def test_a_key_whose_messages_were_given_up_counts_no_more(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "Limits", partial(Limits, holds=1))
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1)
        parking.conn.execute("UPDATE outbox.message SET state = 'DEAD', remark = 'by hand'")
        parking.request()
        turn_until(session, lambda: not parking.keys, "the key is empty, and held no more")
        parking.send(parking.good, 0, poison=True)
        turn_until(session, lambda: parking.reasons == ["failed"], "it holds its key, not its topic")
        parking.publish(session)


def test_a_key_whose_row_is_held_when_its_lane_is_taken_waits_alone(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """The relay before died while it published the key: what may be in Kafka is in doubt before the key goes on."""
    with withheld_acknowledgements(), relay(database, bootstrap_servers, clean=False) as session:
        parking.fail(session, 1)
        parking.repair()
        parking.request()
        turn_until(session, lambda: bool(read_topic(bootstrap_servers, parking.topic)), "one is in Kafka")
    with relay(database, bootstrap_servers) as successor:
        with holding(database, "SELECT FROM outbox.parked_key FOR UPDATE"):
            parking.send(parking.good, 0)
            parking.settle(successor)
            assert parking.doubtful == [True] * 2
            assert parking.reasons == ["failed", "held"]
        parking.drain(successor)
    check(bootstrap_servers, parking, 2, 1, repeated=True)
