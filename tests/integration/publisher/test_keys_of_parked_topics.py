"""A topic that is parked, with keys of it that are parked, too: neither keeps the other waiting for ever."""

from __future__ import annotations

import pytest

from outbox_relay.publisher import parked
from outbox_relay.publisher.session import Session
from tests.support.plain_inserts import connect, insert
from tests.support.relay_session import relay_session, turn_until
from tests.support.topic_parking import LANES, TopicParking

LIMIT = 1_000
LONG = '{"much": "%s"}' % ("x" * 2 * LIMIT)
SET_LIMIT = "UPDATE outbox.topic SET max_message_bytes = %s WHERE name = %s"
REQUEST = "UPDATE outbox.parked_key SET requested_at = clock_timestamp() WHERE NOT is_topic"


class Keys:
    """Keys of the topic that is to be parked, in one lane: their messages are written one by one."""

    def __init__(self, topics: TopicParking) -> None:
        self.topics = topics
        self.bad, self.other = topics.keys[topics.sick][0], topics.another_key(LANES[0])
        topics.conn.execute(SET_LIMIT, [LIMIT, topics.sick])

    def send(self, key: str, *versions: int, poison: bool = False) -> None:
        """Write messages of a key; a poisonous one is larger than the topic takes."""
        for version in versions:
            columns = {"headers": LONG} if poison else {}
            insert(self.topics.conn, self.topics.sick, key, f"{key}:{version}", lane=LANES[0], **columns)

    def publish(self, session: Session) -> None:
        """Repair the cause, and let the relay publish what is parked."""
        self.topics.conn.execute(SET_LIMIT, [1_000_000, self.topics.sick])
        self.topics.conn.execute(REQUEST)
        turn_until(session, lambda: not self.topics.reasons, "the keys are drained")
        self.topics.settle(session)
        assert self.topics.reasons == []


@pytest.mark.parametrize("parked_first", [True, False])
def test_a_topic_goes_on_although_its_keys_hold_as_much_as_a_lane_may(
    database: str, bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch, *, parked_first: bool
) -> None:
    """Its keys are drained before it then, if it is open; else both would wait for ever."""
    monkeypatch.setattr(parked, "MOST_HELD", 8)
    monkeypatch.setattr(parked, "MOST_KEYS", 2 if parked_first else 1)
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        keys = Keys(topics)
        if parked_first:
            keys.send(keys.bad, 0, poison=True)
            topics.settle(session)
        topics.pause()
        topics.follow(session)
        keys.send(keys.other, 0, poison=True)
        if not parked_first:
            keys.send(keys.bad, 0, poison=True)
        keys.send(keys.bad, *range(1, 6))
        keys.send(keys.other, *range(1, 4))
        topics.settle(session)
        assert len(topics.parked) == 1
        topics.resume()
        if parked_first:
            turn_until(session, lambda: not topics.parked, "the topic is drained")
            topics.settle(session)
            assert sorted(topics.reasons) == ["failed"] * 2 + ["held"] * 8
        else:
            full = [(LANES[0], topics.sick, "TOO_MANY_PARKED")]
            turn_until(session, lambda: topics.parked == full, "there is room for one key only")
        assert not session.stopped
        keys.publish(session)
        turn_until(session, lambda: not topics.parked, "the topic follows its keys")
        topics.settle(session)
        assert not topics.reasons
    expected = [(keys.bad, version) for version in range(6)] + [(keys.other, version) for version in range(4)]
    topics.check(topics.sick, (), also=expected)


def test_a_locked_row_of_a_topic_holds_up_no_other_drain(database: str, bootstrap_servers: str) -> None:
    """An operator's open transaction on the row of one lane: the other lane, and a requested key, are drained."""
    with (
        connect(database) as conn,
        connect(database) as operator,
        relay_session(database, bootstrap_servers) as session,
    ):
        topics = TopicParking(conn, bootstrap_servers)
        conn.execute(SET_LIMIT, [LIMIT, topics.well])
        key = topics.keys[topics.well][0]
        insert(conn, topics.well, key, f"{key}:0", lane=LANES[0], headers=LONG)
        topics.settle(session)
        assert topics.of_keys == 1
        topics.pause()
        topics.follow(session)
        topics.send(2, [topics.sick])
        topics.settle(session)
        assert len(topics.parked) == 2
        with operator.transaction():
            operator.execute(
                "SELECT FROM outbox.parked_key WHERE is_topic AND lane = %s FOR UPDATE", [LANES[0]]
            )
            topics.resume()
            conn.execute(SET_LIMIT, [1_000_000, topics.well])
            turn_until(session, lambda: len(topics.parked) == 1, "the other lane is drained")
            conn.execute(REQUEST)
            turn_until(session, lambda: not topics.of_keys, "the key is drained")
            assert [lane for lane, *_ in topics.parked] == [LANES[0]]
        topics.drain(session)
        assert topics.reasons == []
    topics.check(topics.sick, range(2))
    topics.check(topics.well, (), also=[(key, 0)])


@pytest.mark.parametrize("pages", [0, 1])
def test_a_key_that_is_drained_during_a_pause_keeps_its_request(
    database: str, bootstrap_servers: str, *, pages: int
) -> None:
    """Also if its topic is paused behind the first page. No sound message is dead, and the key goes on by itself."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        keys = Keys(topics)
        keys.send(keys.bad, 0, poison=True)
        keys.send(keys.bad, 1, 2, 3)
        topics.settle(session)
        assert topics.reasons == ["failed", "held", "held", "held"]
        if pages:
            conn.execute(SET_LIMIT, [1_000_000, topics.sick])
            topics.follow(session)
            conn.execute(REQUEST)
            turn_until(session, lambda: len(topics.reasons) == 3, "its head is drained, alone")
        else:
            head = "SELECT m.message_id FROM outbox.message m JOIN outbox.parked_key k ON k.head = m.id"
            conn.execute(f"UPDATE outbox.message SET state = 'DEAD' WHERE message_id = ({head})")
        topics.pause()
        session._publisher.topics.read_anew(-1)
        turn_until(session, lambda: bool(topics.parked), "its topic is parked")
        topics.settle(session)
        for _ in range(5):
            session._drain_at = 0.0
            session.run_once(0.005)
        assert topics.reasons == ["held"] * 3
        state = (
            "SELECT requested_at IS NOT NULL, draining_at IS NULL FROM outbox.parked_key WHERE NOT is_topic"
        )
        assert conn.execute(state).fetchall() == [(True, True)]
        assert topics.parked == [(LANES[0], topics.sick, "TOPIC_PAUSED")]
        keys.send(keys.other, 0)
        topics.settle(session)
        topics.resume()
        turn_until(session, lambda: not topics.parked and not topics.of_keys, "both are drained")
        topics.settle(session)
        assert topics.reasons == []
    expected = [(keys.bad, version) for version in range(0 if pages else 1, 4)] + [(keys.other, 0)]
    topics.check(topics.sick, (), also=expected)
