"""Rows and keys that a session has locked which stands still: only their keys wait, and workers go on with others.

Such a session is one of a member that was stopped, or whose host has lost power, or whose listener runs on after a
rebalance. The threads of the member that took over waited for its rows, one after the other, until none was left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import monotonic
from typing import Any

import psycopg
import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.integration.inbox.test_simple_consumer import simple
from tests.support.inbox_stage import Connection, InboxStage, apply, apply_all
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

WORKERS, LOCKED = 2, 8
MOST_LATE = 15.0
"""Seconds; they were not applied at all before the locks were released."""
BORN, DAY = 1_700_000_000, "2023-11-14"
LOCK_ROW = """
    INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
    SELECT g.id, %s, %s, 1, 0, 0, '' FROM outbox.consumer_group g
"""


def number(place: int) -> str:
    return f"00000000-0000-4000-8000-{place:012}"


@contextmanager
def locked_rows(inbox: InboxStage) -> Iterator[Connection]:
    """Hold rows of the group's inbox in a transaction, as the listeners of a member that stands still do."""
    wait_until(lambda: inbox.count("outbox.consumer_group"), "the group is registered")
    inbox.conn.execute("SELECT outbox.ensure_inbox_partition(%s)", [DAY])
    with closing(psycopg.connect(inbox.dsn)) as other:
        for place in range(LOCKED):
            other.execute(LOCK_ROW, [number(place), DAY])
        yield other


def bystanders(inbox: InboxStage, topic: str, other: str, mark: str) -> float:
    """Produce a message of another key of the partition, of another partition, and of another topic; return when."""
    inbox.produce(topic, f"near-{mark}", "0")
    inbox.produce(topic, f"part-{mark}", "0", partition=1)
    inbox.produce(other, f"far-{mark}", "0")
    inbox.flush()
    return monotonic()


def wait_for_bystanders(inbox: InboxStage, mark: str, since: float) -> None:
    want = {f"near-{mark}", f"part-{mark}", f"far-{mark}"}
    wait_until(lambda: want <= set(inbox.applied("key")), f"the others of {mark} are applied", seconds=60)
    assert monotonic() - since < MOST_LATE


@pytest.mark.feature("S-90", "S-92")
@pytest.mark.parametrize(
    "options",
    [{}, {"orderly": True}, {"orderly": True, "batch": 10}],
    ids=["independent", "orderly", "batch"],
)
def test_locked_messages_hold_up_their_keys_only(
    inbox: InboxStage, topic: str, make_topic: MakeTopic, options: dict[str, Any]
) -> None:
    other = make_topic(1)
    listener: Callable[..., Any] = apply_all if "batch" in options else apply
    with inbox.consumer({topic: "*", other: "*"}, listener, workers=WORKERS, **options) as consumer:
        with locked_rows(inbox) as holder:
            for place in range(LOCKED):
                inbox.produce(topic, f"k{place}", "0", message_id=number(place), born_at=BORN)
                inbox.produce(topic, f"k{place}", "1")
            wait_for_bystanders(inbox, "first", bystanders(inbox, topic, other, "first"))
            wait_for_bystanders(inbox, "second", bystanders(inbox, topic, other, "second"))
            assert "0" not in inbox.by_key() or "orderly" not in options
            if "orderly" in options:
                assert not [key for key in inbox.applied("key") if key.startswith("k")], "the keys wait"
            assert consumer.vitals().trouble is None
            holder.rollback()
        inbox.wait_applied(2 * LOCKED + 6)
    if "orderly" in options:
        assert all(inbox.by_key()[f"k{place}"] == [0, 1] for place in range(LOCKED))
    assert inbox.count("applied") == 2 * LOCKED + 6
    assert inbox.count("outbox.inbox_parked") == 0, "no attempt was counted"


@pytest.mark.feature("S-92", "S-103")
def test_a_message_that_failed_waits_for_its_key_and_does_not_run_again(
    inbox: InboxStage, topic: str, make_topic: MakeTopic
) -> None:
    other, runs = make_topic(1), []

    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.key is not None and message.key.startswith(b"k"):
            runs.append(message.key)
            raise ValueError("it fails")
        return apply(conn, message)

    options: dict[str, Any] = {"orderly": True, "workers": WORKERS, "delays": DelaySchedule.of(["1h"])}
    with inbox.consumer({topic: "*", other: "*"}, listener, **options) as consumer:
        wait_until(lambda: len(consumer.vitals().partitions) == 5, "all are read")
        with closing(psycopg.connect(inbox.dsn)) as holder:
            for place in range(3):
                holder.execute(
                    "INSERT INTO outbox.inbox_held_key (group_id, topic_id, order_key) "
                    "SELECT g.id, t.id, %s FROM outbox.consumer_group g, outbox.inbox_topic t WHERE t.name = %s",
                    [f"k{place}".encode(), topic],
                )
                inbox.produce(topic, f"k{place}", "0")
            wait_for_bystanders(inbox, "first", bystanders(inbox, topic, other, "first"))
            wait_until(lambda: len(runs) == 3, "they have failed")
            wait_for_bystanders(inbox, "second", bystanders(inbox, topic, other, "second"))
            holder.rollback()
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 3, "they are parked")
    assert sorted(runs) == [b"k0", b"k1", b"k2"]


@pytest.mark.parametrize("batch", [None, 5])
def test_a_listener_has_no_limit_of_its_waits(inbox: InboxStage, topic: str, batch: int | None) -> None:
    """Also for messages that were taken ahead, and for retries."""
    limits: list[str] = []

    def listener(conn: Connection, given: Any) -> ConsumeResult:
        limits.extend(text for (text,) in conn.execute("SHOW lock_timeout").fetchall())
        messages = given if isinstance(given, list) else [given]
        if any(each.body == b"0" and not each.reconsume_times for each in messages):
            return ConsumeResult.RECONSUME_LATER
        return apply_all(conn, messages)

    inbox.produce_numbered(topic, 20)
    with inbox.consumer(topic, listener, workers=1, batch=batch):
        inbox.wait_applied(20)
    assert set(limits) == {"0"}


def test_a_batch_waits_for_no_row_behind_the_first_one(inbox: InboxStage, topic: str) -> None:
    """The limit is lifted when all rows are inserted, not with the first one."""
    with inbox.consumer(topic, apply_all, workers=1, batch=5, linger=1.0):
        with locked_rows(inbox) as holder:
            holder.execute(LOCK_ROW, [number(99), DAY])
            for place in (98, 99):
                inbox.produce(topic, f"k{place}", "0", message_id=number(place), born_at=BORN)
            inbox.flush()
            wait_until(lambda: inbox.applied("key") == ["k98"], "the other one is applied", seconds=60)
            holder.rollback()
        inbox.wait_applied(2)


def test_a_key_that_an_application_has_locked_holds_up_no_other_one(inbox: InboxStage, topic: str) -> None:
    """The application acknowledges in its transaction, and stands still before it commits."""
    with simple(inbox, topic, fifo=True, wait=1.0) as consumer, closing(psycopg.connect(inbox.dsn)) as holder:
        inbox.produce(topic, "k", "0")
        inbox.flush()
        seen: list[bytes | None] = []
        wait_until(lambda: views_of(consumer, seen, holder), "it is received")
        inbox.produce(topic, "k", "1")
        for place in range(3):
            inbox.produce(topic, f"other{place}", "0")
        inbox.flush()
        since = monotonic()
        want = {b"other0", b"other1", b"other2"}
        wait_until(
            lambda: views_of(consumer, seen) and want <= set(seen), "the others are received", seconds=60
        )
        assert monotonic() - since < MOST_LATE
        assert seen.count(b"k") == 1
        holder.commit()
        wait_until(lambda: views_of(consumer, seen) and seen.count(b"k") == 2, "the key goes on")


def views_of(consumer: Any, seen: list[bytes | None], holder: Connection | None = None) -> bool:
    """Receive what there is, and acknowledge it; return whether anything was received so far."""
    for view in consumer.receive(10, 60.0):
        seen.append(view.message.key)
        consumer.ack(view, holder)
    return bool(seen)
