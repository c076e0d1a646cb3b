"""A topic with a backlog is read apart: the others do not wait, and a successor goes on from the recorded floor."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterator

import pytest

from outbox.statements import array_text
from outbox_relay.publisher import finder, polls
from outbox_relay.publisher.core.values import THE_REST
from outbox_relay.publisher.finder import BETWEEN_RANGES, POSITION, TOPIC, Finder, RawRow, Slice
from outbox_relay.publisher.hands import reads
from outbox_relay.publisher.hands.reads import MOST_APART
from outbox_relay.publisher.polls import Poll
from outbox_relay.publisher.prepared import Rider
from outbox_relay.publisher.read_ahead import ListAhead
from outbox_relay.publisher.snapshot import Snapshot
from tests.support.bare_reader import Reading
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import positions

SEEDS = [*range(12), pytest.param(random.SystemRandom().randrange(10**6), id="any")]
RECORD = """
    INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, is_partial, positions, partitions, offsets)
    VALUES (1, %(batch)s, %(lo)s, %(hi)s, %(lanes)s, %(floor)s, true, %(positions)s, %(partitions)s, %(offsets)s)
"""


class Loop:
    """A session's turns without Kafka: every page that is read is published and recorded at once."""

    def __init__(self, reading: Reading, conn: Connection) -> None:
        self._reading, self._conn = reading, conn
        self.recorded: Snapshot = reading.floor
        """The floor of the newest record."""
        self.published: list[RawRow] = []
        self.turns = 0

    @property
    def apart(self) -> list[Hashable]:
        """The groups that are read apart."""
        return list(self._reading.core.sources.catch_ups)

    def turn(self, *, crashes: bool = False) -> bool:
        """Take one read and record its page; `crashes`: die before that."""
        self.turns += 1
        rows = self._reading.turn()
        if rows and crashes:
            self.die()
        elif rows:
            self._record(rows)
        return bool(rows)

    def _record(self, rows: list[RawRow]) -> None:
        found = [row[POSITION] for row in rows]
        zeros = array_text([0] * len(found))
        values = {
            "batch": self.turns, "lo": found[0], "hi": found[-1], "lanes": array_text(range(8)),
            "floor": str(self._reading.floor), "positions": array_text(found), "partitions": zeros, "offsets": zeros,
        }  # fmt: skip
        self._conn.execute(RECORD, values)
        self.recorded = self._reading.floor
        self.published += rows

    def die(self) -> None:
        """Forget everything but what is recorded; pages that were read are lost."""
        self._reading.start(self.recorded)

    def drain(self) -> None:
        """Take turns until two tails bring nothing, and nothing is read apart."""
        level = 0
        while level < 2:
            level = 0 if self.turn() or self.apart else level + 1
            assert self.turns < 3_000


@pytest.fixture
def loop(database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(polls, "AT_ONCE", 12)
    monkeypatch.setattr(reads, "QUANTUM", 3)
    # The session takes a page of a list when it is read; here each turn waits for it.
    monkeypatch.setattr(ListAhead, "is_ready", True)
    reading = Reading(database, page=5)
    yield Loop(reading, conn)
    reading.close()


def flood(conn: Connection, topic: str, count: int) -> None:
    with conn.transaction():
        for number in range(count):
            insert(conn, topic, f"k{number % 3}", b"")


def hash_of(conn: Connection, topic: str) -> int:
    """Return the group of a topic."""
    row = conn.execute("SELECT hashtext(%s)", [topic]).fetchone()
    assert row is not None
    return int(row[0])


def assert_published_once(loop: Loop, conn: Connection) -> None:
    found = [row[POSITION] for row in loop.published]
    assert sorted(found) == positions(conn)
    for topic in {row[TOPIC] for row in loop.published}:
        of_topic = [row[POSITION] for row in loop.published if row[TOPIC] == topic]
        assert of_topic == sorted(of_topic)


def test_a_message_does_not_wait_behind_the_backlog_of_another_topic(loop: Loop, conn: Connection) -> None:
    flood(conn, "many", 60)
    loop.turn()
    insert(conn, "one", "k", b"")
    while "one" not in [row[TOPIC] for row in loop.published]:
        loop.turn()
        assert len(loop.published) < 20
    loop.drain()
    assert_published_once(loop, conn)


def test_new_messages_of_a_topic_with_a_backlog_wait_behind_it(loop: Loop, conn: Connection) -> None:
    flood(conn, "many", 30)
    loop.turn()
    flood(conn, "many", 2)
    loop.drain()
    assert_published_once(loop, conn)


def test_a_topic_is_one_with_the_others_again_when_it_has_caught_up(loop: Loop, conn: Connection) -> None:
    flood(conn, "many", 30)
    loop.turn()
    assert loop.apart == [hash_of(conn, "many")]
    loop.drain()
    assert not loop.apart
    insert(conn, "many", "k", b"")
    loop.drain()
    published = len(loop.published)
    loop.die()
    assert not loop.turn(), "the recorded floor is behind nothing that is published"
    assert not loop.apart
    assert len(loop.published) == published


def test_a_successor_publishes_nothing_twice_of_a_backlog_that_is_taken(loop: Loop, conn: Connection) -> None:
    flood(conn, "many", 60)
    for number in range(10):
        insert(conn, "few", f"k{number}", b"")
        loop.turn()
    assert loop.apart, "a part of it is published"
    loop.die()
    loop.drain()
    assert_published_once(loop, conn)


def test_many_backlogs_delay_no_other_topic(
    loop: Loop, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than the index leaves out."""
    monkeypatch.setattr(reads, "SORT_S", 3600.0)
    many = [f"many{number}" for number in range(3 * BETWEEN_RANGES)]
    for topic in many:
        flood(conn, topic, 30)
    loop.turn()
    assert {hash_of(conn, topic) for topic in many} <= {*loop.apart}
    for number in range(20):
        insert(conn, many[number], "k0", b"")  # new ones wait behind the backlog of their topic
        insert(conn, "one", "k", b"")
        start = len(loop.published)
        while "one" not in [row[TOPIC] for row in loop.published[start:]]:
            loop.turn()
            assert len(loop.published) - start < 20, "it waited for the backlogs"
    loop.drain()
    assert_published_once(loop, conn)
    assert not loop.apart


def test_a_tail_that_takes_long_to_sort_leaves_the_rest_to_one_list(
    loop: Loop, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll walks what those before it left out: of a hundred backlogs it would take minutes."""
    monkeypatch.setattr(reads, "SORT_S", 0.0)
    polls: list[Slice] = []
    poll = Finder.poll

    def note(finder: Finder, previous: Snapshot, scope: Slice, rider: Rider | None = None) -> Poll:
        polls.append(scope)
        return poll(finder, previous, scope, rider)

    monkeypatch.setattr(Finder, "poll", note)
    for number in range(12):
        flood(conn, f"many{number}", 30)
    loop.turn()
    assert len(polls) == 2
    assert THE_REST in loop.apart
    loop.drain()
    assert_published_once(loop, conn)


def test_pages_that_are_read_ahead_are_smaller_where_there_are_many_lists(
    loop: Loop, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "SORT_S", 3600.0)
    monkeypatch.setattr(reads, "AHEAD", 12)
    monkeypatch.setattr(reads, "LEAST_AHEAD", 1)
    sizes: list[int] = []
    begin = ListAhead.begin

    def note(one: ListAhead, tables: tuple[str, ...], size: int) -> None:
        sizes.append(size)
        begin(one, tables, size)

    monkeypatch.setattr(ListAhead, "begin", note)
    for number in range(6):
        flood(conn, f"many{number}", 20)
    loop.turn()
    loop.turn()
    assert sizes
    assert max(sizes) == 2
    loop.drain()
    assert_published_once(loop, conn)


@pytest.mark.parametrize("limits", [(1, 7), (7, 1), (MOST_APART, BETWEEN_RANGES)], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_crashes_while_topics_are_apart_lose_and_double_nothing(
    loop: Loop, conn: Connection, monkeypatch: pytest.MonkeyPatch, seed: int, limits: tuple[int, int]
) -> None:
    """Of more topics than can be read apart the rest is one list."""
    most, between = limits
    monkeypatch.setattr(reads, "MOST_APART", most)
    monkeypatch.setattr(finder, "BETWEEN_RANGES", between)
    chance = random.Random(seed)
    for _ in range(40):
        event = chance.random()
        if event < 0.25:
            flood(conn, chance.choice("ABC"), chance.randrange(1, 30))
        elif event < 0.5:
            insert(conn, chance.choice("ABCDEF"), "k", b"")
        loop.turn(crashes=chance.random() < 0.2)
    loop.drain()
    assert_published_once(loop, conn)


def test_after_a_hand_over_what_is_published_since_the_floor_takes_no_place(
    loop: Loop, conn: Connection, database: str
) -> None:
    """Ten topics with ordinary traffic next to a backlog: a successor reads the backlog apart, and no other topic."""
    others = [f"other{number}" for number in range(10)]
    with connect(database) as writer, writer.transaction():
        insert(
            writer, "many", "k", b""
        )  # its transaction begins first, so what others had comes first to a poll
        for topic in others:
            insert(conn, topic, "k", b"")
            loop.turn()
        for number in range(400):
            insert(writer, "many", f"k{number % 3}", b"")
    for number in range(100):
        insert(conn, others[number % 10], "k", b"")
        loop.turn()
        loop.turn()  # one of them is the tail
    assert loop.apart, "a part of it is published"
    loop.die()
    loop.turn()
    assert loop.apart == [hash_of(conn, "many")]
    start = len(loop.published)
    for topic in others:
        insert(conn, topic, "late", b"")
    while sum(row[TOPIC] != "many" for row in loop.published[start:]) < 10:
        loop.turn()
    assert len(loop.published) - start < 60, "the others waited for the backlog"
    loop.drain()
    assert_published_once(loop, conn)
