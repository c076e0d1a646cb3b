"""A topic moves to more partitions: parked keys, queues that are named, lanes that come back to an earlier owner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from outbox.partitioning.lanes import lane_of
from outbox.partitioning.selectors import partition_of
from outbox_relay.operations import registry_changes, relays
from outbox_relay.publisher.hands.topic_watch import Found, TopicWatch, Tried
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import Record, read_topic
from tests.support.moved_keys import grow, wrong_of_moved
from tests.support.outbox_command import outbox
from tests.support.plain_inserts import Connection, insert, wait_published
from tests.support.relay_session import loop_of, relay_session, turn_until
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until
from tests.support.withheld_acknowledgements import withheld_acknowledgements

BEFORE, AFTER = 2, 4


class Moving:
    """A topic of which two more partitions are in Kafka, and two of its keys, of one lane, that move to them."""

    def __init__(self, conn: Connection, servers: str, topic: str) -> None:
        self.conn, self.servers, self.topic = conn, servers, topic
        self.key, self.other, *_ = (
            key
            for key in (f"k{number}" for number in range(500))
            if partition_of(None, key.encode(), AFTER) >= BEFORE and lane_of(topic, None, key.encode()) == 3
        )
        self.sent: list[tuple[str, int]] = []

    def send(self, key: str | None = None, *, headers: str | None = None) -> None:
        key = key or self.key
        insert(self.conn, self.topic, key, f"{key}:{len(self.sent)}", lane=3, headers=headers)
        self.sent.append((key, len(self.sent)))

    def move(self) -> None:
        self.conn.execute("UPDATE outbox.topic SET partitions = %s WHERE name = %s", [AFTER, self.topic])

    def all_are_recorded(self, *sessions: Session) -> Callable[[], bool]:
        return lambda: sum(session.counts.recorded for session in sessions) == len(self.sent)

    def records(self) -> list[Record]:
        return read_topic(self.servers, self.topic)

    def partitions(self) -> list[int]:
        """Those of the messages of all keys, in the order of the broker's clock."""
        return [one.partition for one in sorted(self.records(), key=lambda one: (one.timestamp, one.offset))]

    @property
    def wrong(self) -> str:
        return wrong_of_moved(self.records(), self.sent, BEFORE, AFTER)


@pytest.fixture
def moving(conn: Connection, bootstrap_servers: str, make_topic: MakeTopic) -> Moving:
    return Moving(conn, bootstrap_servers, make_topic(BEFORE, message_timestamp_type="LogAppendTime"))


@contextmanager
def two_sessions(database: str, servers: str) -> Iterator[tuple[Session, Session]]:
    """A session with all lanes, and one that stands by."""
    with ExitStack() as stack:
        first = stack.enter_context(relay_session(database, servers))
        yield first, stack.enter_context(relay_session(database, servers))


def hand_over(conn: Connection, source: Session, target: Session) -> None:
    """Let all lanes go from one session to another one."""
    living = relays.everything(conn)
    for relay in living:
        relays.ask(conn, [relay.epoch], is_draining=relay.epoch == source.epoch)

    def is_done() -> bool:
        source.run_once(0.005)
        return len(target.lanes) == 8

    turn_until(target, is_done, "the lanes are handed over")


def test_a_key_does_not_go_back_with_its_lane(
    database: str, moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lane A to B to A: B has used the new count, and A knows the old one."""
    with two_sessions(database, moving.servers) as (a, b):
        moving.send()
        turn_until(a, moving.all_are_recorded(a), "A publishes")
        # Nothing else than taking the lane lets A read the topic again.
        tend, kept = TopicWatch.tend, loop_of(a).topics

        def seldom(watch: TopicWatch, tried: Tried, held: Collection[str] = ()) -> tuple[Found, Tried]:
            return ({}, {}) if watch is kept else tend(watch, tried, held)

        monkeypatch.setattr(TopicWatch, "tend", seldom)
        grow(moving.servers, moving.topic, AFTER)
        moving.move()
        hand_over(moving.conn, a, b)
        moving.send()
        turn_until(b, moving.all_are_recorded(a, b), "B publishes")
        assert moving.partitions()[-1] >= BEFORE
        hand_over(moving.conn, b, a)
        moving.send()
        turn_until(a, moving.all_are_recorded(a, b), "A publishes again")
    assert moving.partitions()[-1] >= BEFORE
    assert moving.wrong == ""


def test_what_is_held_behind_a_parked_key_goes_to_the_new_partition(
    database: str, conn: Connection, moving: Moving
) -> None:
    with relay_session(database, moving.servers) as session:
        moving.send()
        turn_until(session, moving.all_are_recorded(session), "the first one is published")
        moving.send(headers='{"outbox-id": "x"}')  # a reserved name: the key is parked
        moving.send()
        moving.send(moving.other)
        held = "SELECT count(*) FROM outbox.waiting"
        turn_until(session, lambda: conn.execute(held).fetchone() == (2,), "two messages are held")
        grow(moving.servers, moving.topic, AFTER)
        moving.move()
        counts = loop_of(session).core.topics.counts
        turn_until(session, lambda: counts[moving.topic] == (AFTER, None), "the topic has moved")
        assert conn.execute(held).fetchone() == (2,)
        conn.execute("UPDATE outbox.message SET headers = NULL WHERE headers IS NOT NULL")
        conn.execute("UPDATE outbox.parked_key SET requested_at = clock_timestamp()")
        moving.send()
        turn_until(session, moving.all_are_recorded(session), "the key is drained")
    assert moving.wrong == ""
    assert [one.partition < BEFORE for one in moving.records() if one.key == moving.key.encode()].count(
        True
    ) == 1


def test_messages_that_name_their_queue_stay_there(database: str, conn: Connection, moving: Moving) -> None:
    def send(number: int) -> None:
        insert(conn, moving.topic, moving.key, f"{moving.key}:{number}", queue=1)
        moving.sent.append((moving.key, number))

    with relay_session(database, moving.servers) as session:
        send(0)
        turn_until(session, moving.all_are_recorded(session), "the first one is published")
        grow(moving.servers, moving.topic, AFTER)
        moving.move()
        counts = loop_of(session).core.topics.counts
        turn_until(session, lambda: counts[moving.topic] == (AFTER, None), "the topic has moved")
        send(1)
        turn_until(session, moving.all_are_recorded(session), "the second one is published")
    assert moving.partitions() == [1, 1]


def test_a_relay_states_what_it_publishes_by(database: str, conn: Connection, moving: Moving) -> None:
    """A change that is undone, one of the selector and a deletion count as well; one of the size limit does not."""
    seen = "SELECT topics_seen FROM outbox.lease"
    with relay_session(database, moving.servers) as session:
        session._lease.seconds = 0.3  # renewed every 100 ms
        moving.send()
        turn_until(session, moving.all_are_recorded(session), "the first one is published")
        grow(moving.servers, moving.topic, AFTER)
        for number, change in enumerate(
            ("partitions = 4", "selector = 'crc32'", "selector = NULL, partitions = 2"), 1
        ):
            conn.execute(f"UPDATE outbox.topic SET {change}, max_message_bytes = 1000000")
            turn_until(session, lambda n=number: conn.execute(seen).fetchone() == (n,), change)  # type: ignore[misc]
        conn.execute("UPDATE outbox.topic SET max_message_bytes = 2000000, partitions = 2")
        assert conn.execute("SELECT generation FROM outbox.topic_generation").fetchone() == (3,)
        conn.execute("DELETE FROM outbox.topic")
        turn_until(session, lambda: conn.execute(seen).fetchone() == (4,), "a deletion")


def test_a_topic_that_cannot_move_delays_no_command_of_another(
    database: str, conn: Connection, moving: Moving, make_topic: MakeTopic
) -> None:
    """A message of it is on the wire: who waits for its move waits on, who pauses the other one does not."""
    other = make_topic()
    with RelayThread(database, moving.servers, lease=1.0) as relay:
        insert(conn, other, "k", "k:0")
        moving.send()
        wait_published(conn)
        grow(moving.servers, moving.topic, AFTER)
        with withheld_acknowledgements():
            moving.send()
            wait_until(lambda: len(moving.records()) == 2, "it is in Kafka")
            moving.move()
            paused = outbox(
                "topic", "pause", other, "--reason", "to see", "--timeout", "60", OUTBOX_DSN=database
            )
            assert paused.code == 0, paused.err
            generation = registry_changes.generation(conn)
            left, right = (registry_changes.relays(conn, generation, name) for name in (moving.topic, other))
            assert [one.has_applied for one in (*left, *right)] == [False, True]
        wait_until(
            lambda: all(one.has_applied for one in registry_changes.relays(conn, generation, moving.topic)),
            "it states the move",
        )
        moving.send()
        wait_until(lambda: len(moving.records()) == 3, "the topic goes on")
        relay.wait_for("topic moves its keys", topic=moving.topic)
    assert moving.wrong == ""
