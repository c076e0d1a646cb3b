"""Batches and what else happens: transactions that wait for each other, threads that end, ids that are used again."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import psycopg

from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, ConsumeResult, batch_plans
from outbox.inbox.messages import Delivery, RawRecord, Source, identify
from tests.support.inbox_stage import Connection, InboxStage, apply_all
from tests.support.waiting import wait_until

SUCCESS, LATER = ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER


def test_two_batches_that_wait_for_the_same_messages_do_not_deadlock(inbox: InboxStage, topic: str) -> None:
    """A third transaction has the second of three messages; the lists of the two are each other's reverse."""
    found: dict[str, list[bool]] = {}
    with inbox.consumer(topic):
        wait_until(lambda: inbox.count("outbox.consumer_group"), "the group is registered")
    [(group,)] = inbox.conn.execute("SELECT id FROM outbox.consumer_group").fetchall()
    deliveries = [identify(Source(1, "c/t"), raw(number), orderly=False) for number in range(3)]
    deliveries.sort(key=lambda each: each.message.message_id)

    def take(name: str, batch: list[Delivery]) -> None:
        with psycopg.connect(inbox.dsn, application_name="taker") as conn:
            found[name] = run(conn, batch_plans.take_batch(group, batch)).is_new

    threads = [
        threading.Thread(target=take, args=("a", deliveries)),
        threading.Thread(target=take, args=("b", deliveries[::-1])),
    ]

    def is_waiting(number: int) -> bool:
        return inbox.count("pg_stat_activity", waits) == number

    waits = "application_name = 'taker' AND wait_event_type = 'Lock'"
    with psycopg.connect(inbox.dsn) as first:
        run(first, batch_plans.take_batch(group, deliveries[1:2]))
        for number, thread in enumerate(threads, 1):
            thread.start()
            wait_until(partial(is_waiting, number), "it waits")
        first.rollback()
        for thread in threads:
            thread.join(60)
    assert found == {"a": [True] * 3, "b": [False] * 3}


def raw(number: int) -> RawRecord:
    """Return a record that has no id of its own."""
    return RawRecord("t", 0, number, b"k", b"b", (), 1_700_000_000_000)


def test_a_thread_that_ends_by_itself_leaves_its_batch_to_another(inbox: InboxStage, topic: str) -> None:
    ended: list[int] = []

    def connected() -> Connection:
        if threading.current_thread().name.startswith("outbox-listener") and len(ended) < 3:
            ended.append(1)
            raise SystemExit("no token")
        return psycopg.connect(inbox.dsn)

    inbox.produce_numbered(topic, 40, keys=20)
    with inbox.consumer(topic, apply_all, dsn=connected, orderly=True, batch=20, workers=2):
        inbox.wait_applied(40)
    assert len(ended) == 3
    assert inbox.by_key() == {f"k{key}": [*range(key, 40, 20)] for key in range(20)}


def test_batches_keep_order_while_members_come_and_go(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 300, keys=20)
    failed: set[bytes | None] = set()
    lock = threading.Lock()

    def listener(conn: Connection, messages: list[ConsumedMessage]) -> list[ConsumeResult]:
        apply_all(conn, messages)
        with lock:
            new = {each.body for each in messages if int(each.body or b"1") % 50 == 0} - failed
            failed.update(new)
        return [LATER if each.body in new else SUCCESS for each in messages]

    settings: dict[str, Any] = {"orderly": True, "workers": 3, "batch": 8, "linger": 0.01}
    with inbox.consumer(topic, listener, **settings):
        inbox.wait_applied(20)
        with inbox.consumer(topic, listener, **settings) as second:
            inbox.wait_applied(60)
            inbox.end_sessions()
            with inbox.consumer(topic, listener, **settings):
                inbox.produce_numbered(topic, 300, keys=20, start=300)
                inbox.wait_applied(200)
                second.stop()
                inbox.wait_applied(350)
                inbox.end_sessions()
                inbox.wait_applied(500)
            inbox.wait_applied(600)
            wait_until(lambda: not inbox.count("outbox.inbox_parked"), "nothing is parked")
    assert inbox.by_key() == {f"k{key}": [*range(key, 600, 20)] for key in range(20)}
    assert len(failed) == 12
    assert inbox.count("outbox.inbox_held_key") == 0


def test_an_id_that_comes_again_with_another_body_is_applied_in_a_batch_too(
    inbox: InboxStage, topic: str
) -> None:
    number = inbox.produce(topic, "k", "first", born_at=1_700_000_000)
    inbox.flush()
    with inbox.consumer(topic, apply_all, batch=50):
        inbox.wait_applied(1)
    inbox.produce(topic, "k", "second", message_id=number, born_at=1_700_000_000)
    inbox.produce(topic, "k", "last")
    inbox.flush()
    with inbox.consumer(topic, apply_all, batch=50):
        inbox.wait_applied(3)
        wait_until(lambda: sum(inbox.committed(topic, part) for part in range(4)) == 3, "offsets follow")
    assert sorted(inbox.applied("body")) == ["first", "last", "second"]
    assert inbox.count("outbox.inbox_parked") == 0
