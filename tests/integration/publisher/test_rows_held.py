"""Rows that somebody else's open transaction holds: what needs them waits by itself, and all other topics go on."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from outbox_relay.publisher.core.values import Item
from outbox_relay.publisher.hands import at_least_once
from outbox_relay.publisher.session import Session
from outbox_relay.publisher.upkeep import repair
from tests.support.kafka_records import compare, read_topic
from tests.support.lanes import take
from tests.support.locks import holding
from tests.support.parking import Parking, check, relay
from tests.support.plain_inserts import clock, connect, fall_due, insert, keys_of_lanes, wait_published
from tests.support.relay_session import turn_until
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

LANE = 3
HELD = {
    "the row of a lane": f"SELECT FROM outbox.lane WHERE lane = {LANE} FOR UPDATE",
    "the rows of all lanes": "SELECT FROM outbox.lane FOR UPDATE",
    "a parked key": "SELECT FROM outbox.parked_key FOR UPDATE",
    "what waits": "SELECT FROM outbox.waiting FOR UPDATE",
    "the messages": "SELECT FROM outbox.message FOR UPDATE",
    "the topics": "SELECT FROM outbox.topic FOR UPDATE",
    "the generation of topics": "SELECT FROM outbox.topic_generation FOR UPDATE",
}
WITHOUT_HOLDS = ("the row of a lane", "the rows of all lanes", "what waits")
"""These rows are locked or deleted where a hold begins, or what waited is recorded: both wait, and that is logged."""
WITHOUT_DRAIN = ("the row of a lane", "the rows of all lanes", "a parked key")
LIMIT = "UPDATE outbox.topic SET max_message_bytes = 20000 WHERE name = %s"
LARGE_HEADERS = '{"much": "%s"}' % ("x" * 30_000)
PLACE = "SELECT id, position FROM outbox.message WHERE message_id = %s"
FLOWED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED' AND message_id <> %s"
HEADS = (
    "SELECT count(*) FROM outbox.parked_key k JOIN outbox.message m ON m.id = k.head WHERE m.message_id = %s"
)
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE topic = %s AND status = 'PUBLISHED'"


def test_a_topic_whose_registration_is_open_holds_up_no_other(
    database: str, bootstrap_servers: str, make_topic: MakeTopic
) -> None:
    fresh, healthy = make_topic(partitions=3), make_topic(partitions=1)
    with (
        connect(database) as conn,
        connect(database) as operator,
        RelayThread(database, bootstrap_servers) as running,
    ):
        keys = keys_of_lanes(conn, healthy, *range(8))
        insert(conn, healthy, keys[0], f"{keys[0]}:0")
        wait_published(conn)
        with operator.transaction():
            operator.execute("SET LOCAL ROLE outbox_operator")
            operator.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 2)", [fresh])
            insert(conn, fresh, "k", b"k:0")
            for version in range(1, 21):
                for key in keys:
                    insert(conn, healthy, key, f"{key}:{version}")
            wait_until(
                lambda: conn.execute(PUBLISHED, [healthy]).fetchone() == (161,), "the healthy topic flows"
            )
            assert conn.execute(PUBLISHED, [fresh]).fetchone() == (0,)
            insert(conn, fresh, "k", b"k:1")
        wait_until(lambda: conn.execute(PUBLISHED, [fresh]).fetchone() == (2,), "it goes on by itself")
        assert not running.find("delivery failed")
    expected = [(keys[0], 0), *((key, version) for key in keys for version in range(1, 21))]
    found = compare(read_topic(bootstrap_servers, healthy), expected)
    assert not found.broken
    assert found.duplicate_records == 0
    assert not compare(read_topic(bootstrap_servers, fresh), [("k", 0), ("k", 1)]).broken


def requested_until_free(parking: Parking) -> bool:
    parking.request()
    return not parking.keys


def is_head(parking: Parking, message_id: str) -> bool:
    """Whether a key is held at this message."""
    return parking.conn.execute(HEADS, [message_id]).fetchone() == (1,)


@pytest.mark.parametrize("held", HELD)
def test_a_row_that_somebody_holds_stalls_no_healthy_topic(
    database: str, bootstrap_servers: str, parking: Parking, make_topic: MakeTopic, held: str
) -> None:
    """A message fails meanwhile, others are held behind it, a key is drained, and a delayed one falls due."""
    healthy, conn = make_topic(partitions=1), parking.conn
    with RelayThread(database, bootstrap_servers) as running:
        keys = keys_of_lanes(conn, healthy, *range(8))
        insert(conn, healthy, keys[0], f"{keys[0]}:0")
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.bad, 1, 2)
        wait_until(lambda: parking.reasons == ["failed", "held", "held"], "a key is parked")
        late = insert(conn, healthy, "late", b"late:0", deliver_at="2999-01-01")
        wait_until(parking.is_done, "all others are published")
        parking.conn.execute(LIMIT, [parking.topic])
        due = fall_due(conn, late, seconds=1)
        with holding(database, HELD[held]):
            wait_until(lambda: clock(conn) > due, "the delayed message is due")
            if held != "a parked key":
                parking.request()
            if held not in WITHOUT_DRAIN:
                wait_until(lambda: read_topic(bootstrap_servers, parking.topic), "the key is drained")
            large = insert(
                conn, parking.topic, parking.good, f"{parking.good}:0", lane=LANE, headers=LARGE_HEADERS
            )
            parking.send(parking.good, 1)
            for version in range(1, 21):
                for key in keys:
                    insert(conn, healthy, key, f"{key}:{version}")
            wait_until(
                lambda: conn.execute(FLOWED, [healthy, late]).fetchone() == (161,), "the healthy topic flows"
            )
            if held in WITHOUT_HOLDS:
                running.wait_for("lane row locked")
            else:
                wait_until(lambda: is_head(parking, large), "its key is held meanwhile")
        wait_until(lambda: is_head(parking, large), "its key is held")
        parking.repair()
        wait_until(lambda: requested_until_free(parking), "what was held is published")
        wait_until(parking.is_done, "all of it")
        assert parking.reasons == []
        assert len(running.find("lanes taken")) == 1, "the session goes on"
    expected = [(keys[0], 0), ("late", 0), *((key, version) for key in keys for version in range(1, 21))]
    found = compare(read_topic(bootstrap_servers, healthy), expected)
    assert not found.broken
    assert found.duplicate_records == 0
    check(bootstrap_servers, parking, 3, 2)


def test_a_repair_leaves_out_a_message_that_somebody_holds(database: str, topic: str) -> None:
    """The next sweep finds it again."""
    with connect(database) as conn, connect(database) as session:
        ids = [insert(conn, topic, "k", f"k:{version}") for version in range(2)]
        rows = [conn.execute(PLACE, [one]).fetchone() for one in ids]
        held_id, free_id = (row[0] for row in rows if row is not None)
        lease = take(session, "me", 60)
        with holding(database, f"SELECT FROM outbox.message WHERE id = {held_id} FOR UPDATE"):
            session.execute("SET lock_timeout = '5s'")
            repair(session, [held_id, free_id], lease)
        after = [conn.execute(PLACE, [one]).fetchone() for one in ids]
    assert after[0] == rows[0]
    assert after[1] != rows[1]


def withhold(session: Session, parking: Parking) -> None:
    """Let a message fail, another be held and a third be published, while the row of their lane is held."""
    parking.send(parking.bad, 0, poison=True)
    parking.send(parking.bad, 1)
    parking.send(parking.good, 1)
    published = 1 + session.counts.recorded
    turn_until(session, lambda: session.counts.recorded == published, "the one behind them is recorded")
    assert parking.reasons == []


def test_what_is_withheld_outlives_an_error_of_the_relay(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins again from what is recorded, and finds what it withheld once more."""
    failing = [1]

    def check_offsets(items: Collection[Item]) -> None:
        if failing.pop():
            failing.append(0)
            raise ValueError("a defect")
        failing.append(0)

    with relay(database, bootstrap_servers) as session:
        parking.send(parking.good, 0)
        parking.settle(session)
        with holding(database, HELD["the row of a lane"]):
            withhold(session, parking)
            monkeypatch.setattr(at_least_once, "check_offsets", check_offsets)
            parking.send(parking.bad, 2)
            parking.send(parking.good, 2)
            turn_until(session, lambda: failing == [0], "an acknowledgement is not taken")
            turn_until(session, lambda: is_published(parking, f"{parking.good}:2"), "they flow")
            assert parking.reasons == []
        turn_until(session, lambda: parking.reasons == ["failed", "held", "held"], "it is written")
        parking.publish(session)
    check(bootstrap_servers, parking, 3, 3, repeated=True)


def is_published(parking: Parking, body: str) -> bool:
    query = (
        "SELECT s.status FROM outbox.message m JOIN outbox.message_status s USING (id) "
        "WHERE m.topic = %s AND m.body = %s"
    )
    return parking.conn.execute(query, [parking.topic, body.encode()]).fetchone() == ("PUBLISHED",)


def test_a_successor_claims_again_what_was_withheld(
    database: str, bootstrap_servers: str, parking: Parking
) -> None:
    """It publishes nothing again that is recorded."""
    with holding(database, "SELECT 1") as other:
        with relay(database, bootstrap_servers, clean=False) as session:
            parking.send(parking.good, 0)
            parking.settle(session)
            other.execute(HELD["the row of a lane"])
            withhold(session, parking)
        other.rollback()
    with relay(database, bootstrap_servers) as successor:
        turn_until(successor, lambda: parking.reasons == ["failed", "held"], "it claims them")
        parking.publish(successor)
    check(bootstrap_servers, parking, 2, 2)
