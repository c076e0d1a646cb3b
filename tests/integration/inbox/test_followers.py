"""What waits behind a message that failed is parked together: in its order, whole, and only while the key is held."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date

import psycopg
import pytest

from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, batch_plans, plans
from outbox.inbox.failures import reported
from outbox.inbox.followers import MOST, fitting, park_followers
from outbox.inbox.handling import Handling, handle, handle_due, park
from outbox.inbox.messages import Delivery, RawRecord, Source, identify
from outbox.inbox.parked_rows import Retry
from outbox.inbox.sessions import use_read_committed
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.locks import see_blocked
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

COUNT = 500
BORN_AT = int(time.time() * 1000)
LATER = DelaySchedule.of(["1h"])
HOW = Handling(1, apply, LATER)


def delivery(number: int, *, body: bytes | None = None, headers: int = 0) -> Delivery:
    """A message of the key k, born today."""
    own = tuple((f"h{each}", None if each % 2 else b"v%d" % each) for each in range(headers))
    ids = (
        ("outbox-id", f"00000000-0000-4000-8000-{number:012}".encode()),
        ("outbox-born-at", str(BORN_AT).encode()),
    )
    record = RawRecord("t", 0, number, b"k", body or str(number).encode(), own + ids, 1_700_000_000_123)
    return identify(Source(1, "c/t"), record, orderly=True)


@pytest.fixture
def conn(inbox: InboxStage) -> Iterator[Connection]:
    """A connection as a listener's."""
    inbox.conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    with psycopg.connect(inbox.dsn) as conn:
        use_read_committed(conn)
        yield conn


def parked(inbox: InboxStage) -> list[int]:
    """The offsets of what is parked, in the order in which it will be tried."""
    return [row[0] for row in inbox.conn.execute("SELECT off FROM outbox.inbox_parked ORDER BY id")]


@pytest.mark.feature("S-100", "S-103")
def test_what_waits_behind_a_failure_is_parked_together_and_applied_in_order(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic, is_repaired = make_topic(partitions=1), threading.Event()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0" and not is_repaired.is_set():
            raise ValueError("not yet")
        return apply(conn, message)

    inbox.produce_numbered_in(topic, COUNT)
    with inbox.consumer(topic, listener, orderly=True, delays=LATER):
        wait_until(lambda: inbox.count("outbox.inbox_parked") == COUNT, "all of the key are parked")
        wait_until(lambda: inbox.committed(topic) == COUNT, "the offset follows")
        assert parked(inbox) == [*range(COUNT)]
        rows = inbox.conn.execute("SELECT count(*) FROM outbox.inbox_parked GROUP BY xmin ORDER BY min(id)")
        sizes = [row[0] for row in rows]
        assert sizes[0] == 1, "the one that failed"
        assert MOST // 2 < max(sizes) <= MOST
        assert len(sizes) < COUNT / 10
        assert inbox.count("applied") == 0
        is_repaired.set()
        inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now() WHERE state = 'retry'")
        inbox.wait_applied(COUNT)
    assert inbox.applied("body") == [str(number) for number in range(COUNT)]
    assert inbox.count("outbox.inbox_parked") == inbox.count("outbox.inbox_held_key") == 0


@pytest.mark.feature("S-91", "S-100")
def test_a_message_that_comes_twice_behind_a_failure_is_applied_once(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic = make_topic(partitions=1)
    for number in range(60):
        message_id = inbox.produce(topic, "k", str(number))
        if number % 3 == 1:
            inbox.produce(topic, "k", str(number), message_id=message_id)
    inbox.flush()

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0" and message.reconsume_times < 2:
            return ConsumeResult.RECONSUME_LATER
        return apply(conn, message)

    with inbox.consumer(topic, listener, orderly=True):
        inbox.wait_applied(60)
        wait_until(lambda: inbox.committed(topic) == 80, "the offset follows")
    assert inbox.applied("body") == [str(number) for number in range(60)]


def test_a_parked_follower_is_the_message_that_was_delivered(inbox: InboxStage, conn: Connection) -> None:
    messages = [delivery(0), *(delivery(number, headers=number % 5) for number in range(1, 30))]
    messages += [delivery(30, body=bytes(range(256)) * 4096)]
    park(conn, HOW, messages[0], reported("f"), None)
    assert park_followers(conn, 1, messages[1:]) == [True] * 30
    inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now() WHERE state = 'retry'")
    seen: list[ConsumedMessage] = []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message)
        return ConsumeResult.SUCCESS

    while handle_due(conn, Handling(1, listener, LATER)):
        pass
    assert [message.reconsume_times for message in seen] == [1, *[0] * 30]
    facts = (
        "message_id",
        "topic",
        "partition",
        "offset",
        "key",
        "body",
        "headers",
        "born_at",
        "published_at",
    )
    for name in facts:
        assert [getattr(message, name) for message in seen] == [
            getattr(each.message, name) for each in messages
        ]


def test_followers_of_a_key_that_is_not_held_are_left_alone(inbox: InboxStage, conn: Connection) -> None:
    assert park_followers(conn, 1, [delivery(1), delivery(2)]) == [False, False]
    assert inbox.count("outbox.inbox") == inbox.count("outbox.inbox_parked") == 0
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_a_follower_that_was_taken_over_before_is_left_out(inbox: InboxStage, conn: Connection) -> None:
    handle(conn, HOW, delivery(2))
    park(conn, HOW, delivery(0), reported("f"), None)
    assert park_followers(conn, 1, [delivery(1), delivery(2), delivery(3)]) == [True, False, True]
    assert parked(inbox) == [0, 1, 3]
    assert park_followers(conn, 1, [delivery(1), delivery(3)]) == [False, False]
    assert inbox.count("outbox.inbox") == 4


def test_followers_below_the_floor_are_left_to_be_set_aside(inbox: InboxStage, conn: Connection) -> None:
    park(conn, HOW, delivery(0), reported("f"), None)
    inbox.conn.execute("INSERT INTO outbox.inbox_floor VALUES (1, current_date + 1)")
    assert park_followers(conn, 1, [delivery(1), delivery(2)]) == [False, False]
    assert parked(inbox) == [0]


@pytest.mark.parametrize("is_last", [True, False], ids=["released", "still held"])
def test_followers_wait_for_the_retry_that_ends(inbox: InboxStage, conn: Connection, is_last: bool) -> None:
    """The retry has locked the held key, and commits while the followers wait for it."""
    park(conn, HOW, delivery(0), reported("f"), None)
    if not is_last:
        assert park_followers(conn, 1, [delivery(1)]) == [True]
    with psycopg.connect(inbox.dsn) as other, ThreadPoolExecutor(1) as pool:
        use_read_committed(other)
        inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now() WHERE state = 'retry'")
        retry = run(other, plans.next_due(1))
        assert retry is not None
        run(other, plans.take_out(1, retry))
        waiting = pool.submit(park_followers, conn, 1, [delivery(2), delivery(3)])
        see_blocked(inbox.conn, conn, waiting)
        other.commit()
        assert waiting.result(60) == [not is_last] * 2
    assert parked(inbox) == ([] if is_last else [1, 2, 3])
    assert inbox.count("outbox.inbox_parked", "state = 'retry'") == (0 if is_last else 1)


def test_a_retry_that_waits_for_followers_lets_the_first_of_them_follow(
    inbox: InboxStage, conn: Connection
) -> None:
    park(conn, HOW, delivery(0), reported("f"), None)
    inbox.conn.execute("UPDATE outbox.inbox_parked SET due_at = now() WHERE state = 'retry'")
    with psycopg.connect(inbox.dsn) as other, ThreadPoolExecutor(1) as pool:
        use_read_committed(other)
        retry = run(other, plans.next_due(1))
        assert retry is not None

        def take_out(retry: Retry = retry) -> None:
            run(other, plans.take_out(1, retry))
            other.commit()

        assert run(conn, batch_plans.park_behind_all(1, [delivery(1), delivery(2)])) == [True, True]
        waiting = pool.submit(take_out)
        see_blocked(inbox.conn, other, waiting)
        conn.commit()
        waiting.result(60)
    rows = inbox.conn.execute("SELECT off, state FROM outbox.inbox_parked ORDER BY id").fetchall()
    assert rows == [(1, "retry"), (2, "waiting")]


def test_two_members_that_gather_the_same_followers_do_not_deadlock(
    inbox: InboxStage, conn: Connection
) -> None:
    park(conn, HOW, delivery(0), reported("f"), None)
    with psycopg.connect(inbox.dsn) as other, ThreadPoolExecutor(2) as pool:
        use_read_committed(other)
        for first in range(1, 10 * MOST, MOST):
            some = [delivery(number) for number in range(first, first + MOST)]
            begin = threading.Barrier(2)

            def gather(
                conn: Connection, some: list[Delivery] = some, begin: threading.Barrier = begin
            ) -> list[bool]:
                begin.wait(60)
                return park_followers(conn, 1, some)

            one, two = (pool.submit(gather, each) for each in (conn, other))
            both = zip(one.result(60), two.result(60), strict=True)
            assert all(sum(each) == 1 for each in both), "each is parked by one of them"
    assert parked(inbox) == [*range(10 * MOST + 1)]


def test_only_messages_that_can_be_parked_together_are_gathered() -> None:
    today = delivery(0).born_on

    def gathered(messages: list[Delivery], days: set[date]) -> int:
        fits, count = fitting(days), 0
        while count < len(messages) and fits(messages[count]):
            count += 1
        return count

    many = [delivery(number) for number in range(MOST + 5)]
    assert gathered(many, {today}) == MOST
    assert gathered(many, set()) == 0, "the partition of their day may not exist"
    assert gathered([delivery(1), delivery(2), delivery(1)], {today}) == 2, "an id comes twice"
    large = [delivery(number, body=bytes(400_000)) for number in range(5)]
    assert gathered(large, {today}) == 2
    headed = [replace(each, message=replace(each.message, headers=(("h", bytes(400_000)),))) for each in many]
    assert gathered(headed, {today}) == 2, "values of headers count, too"
