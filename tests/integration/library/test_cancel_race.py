"""Cancelling races with the relay that releases: one of the two wins, and what is reported is what Kafka shows."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import psycopg
import pytest

from outbox import Outbox
from outbox.errors import TooLateError
from outbox_relay.publisher.upkeep import STATEMENTS
from tests.support.kafka_records import message_ids, read_topic
from tests.support.locks import see_blocked
from tests.support.plain_inserts import Connection, clock, connect, fall_due, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

CANCEL = "UPDATE outbox.message SET state = 'CANCELLED', remark = 'test' WHERE message_id = %s AND state = 'COMMITTED'"
RACES = 100
CANCELLERS = 4
STEP = timedelta(milliseconds=1)


def cancel(conn: Connection, message_id: str) -> bool:
    """Cancel by the documented statement; answer whether it won."""
    try:
        return conn.execute(CANCEL, [message_id]).rowcount == 1
    except psycopg.errors.CheckViolation as error:
        if error.diag.constraint_name != "message_is_waiting":
            raise
        return False


def cancel_by_verb(conn: Connection, message_id: str) -> bool:
    """Cancel as the library does; answer whether it won."""
    try:
        with conn.transaction():
            Outbox("test").cancel(conn, message_id, remark="test")
    except TooLateError:
        return False
    return True


def until(conn: Connection, moment: datetime) -> None:
    """Let the database's clock reach a moment: the race is about that moment."""
    conn.execute("SELECT pg_sleep(extract(epoch FROM %s - clock_timestamp()))", [moment])


def race(dsn: str, topic: str, cancelling: Callable[[Connection, str], bool]) -> dict[str, bool]:
    """Cancel message after message about when it is due: a little later after a victory, sooner after a defeat.

    The steps grow until the outcome changes: on a busy machine either side may be late by a tenth of a second.
    """
    won: dict[str, bool] = {}
    lead, offset, step, last = timedelta(milliseconds=30), timedelta(), STEP, None
    with connect(dsn) as conn:
        for _ in range(RACES):
            due = clock(conn) + lead
            message_id = insert(conn, topic, "k", None, deliver_at=due)
            until(conn, due + offset)
            won[message_id] = by_us = cancelling(conn, message_id)
            step, last = (2 * step if by_us is last else STEP), by_us
            offset += step if by_us else -step
            if offset < -lead:  # so slow a machine needs more time between writing and cancelling
                lead *= 2
    return won


@pytest.mark.feature("H-05")
def test_a_cancellation_at_the_moment_of_release_has_one_outcome_and_it_is_true(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        with ThreadPoolExecutor(CANCELLERS) as pool:
            ways = [cancel, cancel_by_verb] * (CANCELLERS // 2)
            races = [pool.submit(race, database, topic, way) for way in ways]
        won = {message_id: by_us for running in races for message_id, by_us in running.result().items()}
        wait_until(
            lambda: conn.execute("SELECT count(*) FROM outbox.waiting").fetchone() == (0,), "all are settled"
        )
        wait_published(conn)
        relay.stop()
        states = dict(conn.execute("SELECT message_id::text, status FROM outbox.message_status").fetchall())
    cancelled = {message_id for message_id, by_us in won.items() if by_us}
    assert len(won) // 10 < len(cancelled) < len(won) * 9 // 10, "no races were run"
    assert {m for m, status in states.items() if status == "CANCELLED"} == cancelled
    assert message_ids(read_topic(bootstrap_servers, topic)) == dict.fromkeys(won.keys() - cancelled, 1)


def release(conn: Connection) -> int:
    return conn.execute(STATEMENTS["release"], {"since": "-infinity", "lanes": "{0,1,2,3,4,5,6,7}"}).rowcount


def test_who_comes_second_learns_it(database: str, topic: str) -> None:
    """Both orders, with the first still uncommitted when the second comes, and with both its ends."""
    with connect(database) as relay, connect(database) as other, connect(database) as observer:
        settle: list[tuple[Callable[[], None], bool]] = [(relay.commit, False), (relay.rollback, True)]
        for end, cancellation_wins in settle:
            message_id = _due(observer, topic)
            relay.execute("BEGIN")
            assert release(relay) == 1
            with ThreadPoolExecutor(1) as pool:
                cancelling = pool.submit(cancel, other, message_id)
                see_blocked(observer, other, cancelling)
                end()
                assert cancelling.result(20) is cancellation_wins
            assert _state(observer, message_id) == ("CANCELLED" if cancellation_wins else "COMMITTED")
            observer.execute("DELETE FROM outbox.waiting")
        for end, cancellation_wins in [(other.commit, True), (other.rollback, False)]:
            message_id = _due(observer, topic)
            other.execute("BEGIN")
            assert cancel(other, message_id)
            assert release(relay) == 0, "the relay waits for nobody"
            end()
            assert release(relay) == (0 if cancellation_wins else 1)
            assert _state(observer, message_id) == ("CANCELLED" if cancellation_wins else "COMMITTED")


@pytest.mark.feature("H-05")
def test_a_delayed_half_message_leaves_its_keys_order_and_holds_no_successor(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    """The declared rule: a message takes its place when it may be published: when it is due, if that is later."""
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        due = clock(conn) + timedelta(hours=1)
        half = insert(
            conn, topic, "k", b"1: half and delayed", deliver_at=due, state="UNKNOWN", producer_group="g"
        )
        insert(conn, topic, "k", b"2: while it is half")
        wait_published(conn)
        conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [half])
        insert(conn, topic, "k", b"3: while it is delayed")
        wait_published(conn)
        assert _state(conn, half, "waiting") == "delayed"
        fall_due(conn, half)
        wait_until(lambda: _state(conn, half, "status") == "PUBLISHED", "it is due")
        insert(conn, topic, "k", b"4: after it")
        wait_published(conn)
        relay.stop()
    records = read_topic(bootstrap_servers, topic)
    assert [record.value for record in records] == [
        b"2: while it is half",
        b"3: while it is delayed",
        b"1: half and delayed",
        b"4: after it",
    ]
    assert len({record.partition for record in records}) == 1


def _due(conn: Connection, topic: str) -> str:
    """Write a delayed message, and let its time come."""
    message_id = insert(conn, topic, "k", b"", deliver_at=clock(conn) + timedelta(days=1))
    assert conn.execute("UPDATE outbox.waiting SET due_at = clock_timestamp()").rowcount == 1
    return message_id


def _state(conn: Connection, message_id: str, column: str = "state") -> str | None:
    row = conn.execute(
        f"SELECT {column} FROM outbox.message_status WHERE message_id = %s", [message_id]
    ).fetchone()
    assert row is not None
    found: str | None = row[0]
    return found
