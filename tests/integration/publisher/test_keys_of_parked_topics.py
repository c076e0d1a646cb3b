"""A topic that is parked, with keys of it that are parked, too: neither keeps the other waiting for ever."""

from __future__ import annotations

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


def test_a_locked_row_of_a_topic_holds_up_no_other_drain(database: str, bootstrap_servers: str) -> None:
    """An operator's open transaction on a row of the topic: a requested key of another one is drained meanwhile."""
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
            conn.execute(REQUEST)
            turn_until(session, lambda: not topics.of_keys, "the key is drained")
            assert LANES[0] in [lane for lane, *_ in topics.parked]
        topics.drain(session)
        assert topics.reasons == []
    topics.check(topics.sick, range(2))
    topics.check(topics.well, (), also=[(key, 0)])


def test_a_key_that_is_drained_during_a_pause_keeps_its_request(
    database: str, bootstrap_servers: str
) -> None:
    """No sound message is dead, and the key goes on by itself."""
    with connect(database) as conn, relay_session(database, bootstrap_servers) as session:
        topics = TopicParking(conn, bootstrap_servers)
        keys = Keys(topics)
        keys.send(keys.bad, 0, poison=True)
        keys.send(keys.bad, 1, 2, 3)
        topics.settle(session)
        assert topics.reasons == ["failed", "held", "held", "held"]
        head = "SELECT m.message_id FROM outbox.message m JOIN outbox.parked_key k ON k.head = m.id"
        conn.execute(f"UPDATE outbox.message SET state = 'DEAD' WHERE message_id = ({head})")
        topics.pause()
        topics.follow(session)
        keys.send(keys.other, 0)
        turn_until(session, lambda: bool(topics.parked), "its topic is parked")
        topics.settle(session)
        assert topics.reasons.count("held") >= 1
        state = (
            "SELECT requested_at IS NOT NULL, draining_at IS NULL FROM outbox.parked_key WHERE NOT is_topic"
        )
        assert conn.execute(state).fetchall() == [(True, True)]
        assert topics.parked == [(LANES[0], topics.sick, "TOPIC_PAUSED")]
        topics.resume()
        turn_until(session, lambda: not topics.parked and not topics.of_keys, "both are drained")
        topics.settle(session)
        assert topics.reasons == []
    expected = [(keys.bad, version) for version in range(1, 4)] + [(keys.other, 0)]
    topics.check(topics.sick, (), also=expected)
