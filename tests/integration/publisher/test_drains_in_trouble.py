"""Drains that are never acknowledged, and those of a lane that is stopped before it was read to its end."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from outbox_relay.publisher.batch import Batch
from outbox_relay.publisher.parked import KeyDrain

from outbox_relay.operations.dead_letters import act
from outbox_relay.publisher import draining
from outbox_relay.publisher.errors import Unpublishable
from tests.support.kafka_records import compare, read_topic
from tests.support.parking import Parking, check, relay
from tests.support.plain_inserts import connect, insert, numbered
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.stopped_lanes import Limited

UNREQUESTED = "SELECT FROM outbox.parked_key WHERE requested_at IS NULL"

FLOOD = """
    INSERT INTO outbox.message (topic, lane, key, body)
    SELECT %s, 3, convert_to('k' || i %% 50, 'UTF8'), convert_to(pg_catalog.format('k%%s:%%s', i %% 50, i), 'UTF8')
    FROM generate_series(%s::bigint, %s::bigint) i
"""


@pytest.mark.parametrize("page", ["its first message", "a page of several"])
def test_a_drain_that_is_never_acknowledged_ends_without_the_producer_of_the_others(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """The key's partition acknowledges nothing; what else of the lane is on the wire stays there, and is recorded."""
    monkeypatch.setattr(draining, "DRAIN_PAGE", 2)
    with relay(database, bootstrap_servers) as session:
        parking.fail(session, 1, 2, 3)
        parking.repair()
        drains: list[Batch] = []
        note = session._note_drained

        def unlearned(drain: KeyDrain, part: KeyDrain, batch: Batch) -> None:
            if (page == "its first message") == (batch.alone is not None) and not drains:
                drains.append(batch)
                for slot in batch.slots.values():
                    slot.offsets = []  # its deliveries are appended to another list
                if batch.alone is not None:
                    session._set_aside({drain.lane})
            note(drain, part, batch)

        session._note_drained = unlearned
        parking.request(session)
        turn_until(session, lambda: bool(drains), "the drain is on the wire")
        parking.send(parking.good, 0)
        turn_until(session, lambda: 3 in session._publisher.aside, "the lane waits for its partition")
        producer, polls = session._publisher, session.counts.polls
        session._give_up(3, Unpublishable("PARTITION_UNAVAILABLE", "no acknowledgement"))
        assert session._publisher is producer
        assert parking.keys[0][:2] == (parking.topic, parking.bad.encode())
        assert any(parking.doubtful)
        turn_until(session, lambda: parking.is_done() and not session.unsettled, "the lane goes on")
        assert session.counts.polls > polls
        session._note_drained = note
        if page == "its first message":
            assert parking.keys[0][2] == "PARTITION_UNAVAILABLE: no acknowledgement"
            assert parking.reasons == ["failed", "held", "held", "held"]
            assert parking.conn.execute(UNREQUESTED).fetchall(), "the request is done"
            parking.request(session)
        parking.drain(session)
        assert not session._parked.held.messages_of[3, parking.topic]
        assert session._publisher is not producer, (
            "what it still held was dropped before the key was drained again"
        )
    found = [record.value for record in read_topic(bootstrap_servers, parking.topic)]
    assert list(
        dict.fromkeys(one for one in found if one and one.startswith(parking.bad.encode() + b":"))
    ) == [f"{parking.bad}:{version}".encode() for version in range(4)]
    assert found.count(f"{parking.good}:0".encode()) == 1


def test_what_is_drained_in_a_lane_that_stopped_too_early_does_not_come_again(
    database: str, bootstrap_servers: str, parking: Parking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims alone recorded no progress, and its lane stopped in front of them: a message was committed late."""
    limited = Limited(parking.conn, bootstrap_servers, monkeypatch)
    with connect(database) as late:
        with relay(database, bootstrap_servers) as session:
            parking.send(parking.good, 0)
            parking.settle(session)
            late.execute("BEGIN")
            head = insert(late, limited.name, limited.key(3), b"", lane=3)
            parking.fail(session, 1)
        late.execute("COMMIT")
    parking.repair()
    stopped = "SELECT stopped_message::text FROM outbox.lane WHERE lane = 3"
    with relay(database, bootstrap_servers) as second:
        turn_until(second, lambda: parking.conn.execute(stopped).fetchone() == (head,), "the lane stops")
        parking.request(second)
        turn_until(second, lambda: not parking.keys, "the key is drained meanwhile")
    assert act(parking.conn, "dead", (None, uuid.UUID(head)), "a test", 1.0).result == "decided"
    with relay(database, bootstrap_servers) as third:
        parking.send(parking.bad, 2)
        parking.settle(third)
        turn_until(third, lambda: not third.stopped, "the lane goes on")
    check(bootstrap_servers, parking, 3, 1)


def test_a_lane_that_goes_on_next_to_an_endless_backlog_drains_its_keys(
    database: str,
    bootstrap_servers: str,
    make_topic: MakeTopic,
    parking: Parking,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has not caught up before the backlog is published, which may be never."""
    many, count = make_topic(), 0
    limited = Limited(parking.conn, bootstrap_servers, monkeypatch)
    stopped = "SELECT stopped_message::text FROM outbox.lane WHERE lane = 3"
    with relay_session(database, bootstrap_servers, page=100) as session:

        def flooded_until(condition: Callable[[], bool], what: str) -> None:
            """Let more of one topic come in than is published of it."""

            def more() -> bool:
                nonlocal count
                assert count < 60_000, f"in vain: {what}"
                parking.conn.execute(FLOOD, [many, count, count + 149])
                count += 150
                return condition()

            turn_until(session, more, what)

        parking.send(parking.good, 0)
        parking.settle(session)
        flooded_until(lambda: any(group.split for group in session._groups), "the topic is read apart")
        parking.send(parking.bad, 0, poison=True)
        parking.send(parking.bad, 1)
        head = insert(parking.conn, limited.name, limited.key(3), b"", lane=3)
        flooded_until(lambda: parking.conn.execute(stopped).fetchone() == (head,), "the lane stops")
        assert act(parking.conn, "dead", (None, uuid.UUID(head)), "a test", 1.0).result == "decided"
        flooded_until(lambda: not session.stopped, "the lane goes on")
        parking.repair()
        parking.request(session)
        flooded_until(lambda: not parking.keys, "the key is drained")
        assert session._stops.known([3]), "the lane has not caught up"
        parking.send(parking.bad, 2)
    with relay(database, bootstrap_servers) as successor:
        parking.settle(successor)
    check(bootstrap_servers, parking, 3, 1)
    findings = compare(read_topic(bootstrap_servers, many), numbered(count))
    assert not findings.broken
    assert not findings.duplicate_records
