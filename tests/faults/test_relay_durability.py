"""What a crash of PostgreSQL takes back: nothing of it was published, and xids issued again lose nothing.

A transaction with synchronous_commit = off is visible before it is safe. To make that moment last, the process
that writes the log in the background is stopped; then only a commit that waits for the disk makes anything safe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outbox import Message, Outbox
from outbox.rocketmq import TransactionMQProducer
from outbox_local.stack.api import Stack
from tests.support.background_flushes import no_background_flushes
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import connect, insert, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

LONG_LEASE = ("--lease", "300")
SUPPORT = Path(__file__).parents[1] / "support"
WITHOUT_BARRIER, WITHOUT_RECORDS = SUPPORT / "relay_without_barrier.py", SUPPORT / "relay_without_records.py"


def crash(stack: Stack) -> None:
    stack.kill_postgres()
    stack.start_postgres()


def committed(dsn: str) -> set[bytes]:
    with connect(dsn) as conn:
        return {row[0] for row in conn.execute("SELECT body FROM outbox.message").fetchall()}


def send_unsafely(stack: Stack, dsn: str, topic: str) -> set[bytes | None]:
    """Send with asynchronous commits, crash once something of it was published; answer what was."""
    with connect(dsn) as conn:
        # The relay's own commits would make everything safe: the topic is registered first, the lease is long.
        insert(conn, topic, "k", b"first")
        wait_until(lambda: read_topic(stack.bootstrap_servers, topic), "the first is published")
        conn.execute("CHECKPOINT")
        with no_background_flushes(conn):
            conn.execute("SET synchronous_commit = off")
            for number in range(5):
                insert(conn, topic, f"k{number}", f"k{number}")
            wait_until(lambda: len(read_topic(stack.bootstrap_servers, topic)) == 6, "all are published")
            crash(stack)
    return {record.value for record in read_topic(stack.bootstrap_servers, topic)}


def test_publications_survive_a_crash_of_postgresql_whatever_the_producers_commit(
    private_stack: Stack, private_database: str, private_topic: str
) -> None:
    with RelayProcess(private_database, private_stack.bootstrap_servers, *LONG_LEASE) as relay:
        relay.wait_until_running()
        published = send_unsafely(private_stack, private_database, private_topic)
        assert published == committed(private_database)
        relay.wait_for("lanes taken", epoch=lambda epoch: epoch > 1)
        relay.stop()


def test_without_the_barrier_a_crash_leaves_a_ghost(
    private_stack: Stack, private_database: str, private_topic: str
) -> None:
    with RelayProcess(
        private_database, private_stack.bootstrap_servers, *LONG_LEASE, entry=[str(WITHOUT_BARRIER)]
    ) as relay:
        relay.wait_until_running()
        published = send_unsafely(private_stack, private_database, private_topic)
        relay.kill()
    assert published - committed(private_database), "the barrier is not what keeps ghosts away"


@pytest.mark.parametrize("early", [False, True])
def test_polls_that_ask_for_an_earlier_position_than_their_own_leave_a_ghost(
    private_stack: Stack, private_database: str, private_topic: str, early: bool
) -> None:
    entry = [str(WITHOUT_RECORDS), *(["--early-position"] if early else [])]
    with RelayProcess(private_database, private_stack.bootstrap_servers, *LONG_LEASE, entry=entry) as relay:
        relay.wait_until_running()
        published = send_unsafely(private_stack, private_database, private_topic)
        relay.kill()
    assert bool(published - committed(private_database)) == early


def test_messages_whose_xid_was_issued_before_a_crash_are_published(
    private_stack: Stack, private_database: str, private_topic: str
) -> None:
    """The relay polls on while xids are used up that the crash forgets: they come again, below its last snapshot."""
    highest = 0
    with RelayProcess(private_database, private_stack.bootstrap_servers) as relay:
        with connect(private_database) as conn:
            insert(conn, private_topic, "k", b"first")
            wait_published(conn)
            conn.execute("CHECKPOINT")
            with no_background_flushes(conn):
                for _ in range(20):
                    with conn.transaction(force_rollback=True):
                        row = conn.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
                        assert row is not None
                        highest = row[0]
                row = conn.execute("SELECT clock_timestamp()").fetchone()
                assert row is not None
                now = row[0]
                wait_until(
                    lambda: conn.execute(
                        "SELECT true FROM pg_stat_activity WHERE application_name = 'outbox relay' "
                        "AND datname = current_database() AND query_start > %s AND query ~ 'WITH visible'",
                        [now],
                    ).fetchone(),
                    "the relay has polled since",
                )
                crash(private_stack)
        with connect(private_database) as conn:
            for number in range(60):
                insert(conn, private_topic, "k", b"%d" % number)
            row = conn.execute(
                "SELECT count(*) FROM outbox.message WHERE xid::text::bigint <= %s", [highest]
            ).fetchone()
            assert row is not None
            assert row[0] > 1, "PostgreSQL issued no xid again, so this run proves nothing"
            wait_published(conn)
        relay.stop()
    values = [record.value for record in read_topic(private_stack.bootstrap_servers, private_topic)]
    assert values == [b"first", *(b"%d" % number for number in range(60))]


@pytest.mark.feature("S-11")
def test_a_half_message_that_was_acknowledged_survives_a_killed_postgresql(
    private_stack: Stack, private_database: str
) -> None:
    """The return of the call is the acknowledgement: SIGKILL comes while the listener runs, and after it returned."""
    kills: list[object] = []

    class Dying:
        def execute_local_transaction(self, msg: Any, arg: object) -> None:
            kills.append(msg.message_id)
            private_stack.kill_postgres()

        def check_local_transaction(self, msg: object) -> None:
            return None

    with connect(private_database) as conn, conn.transaction():
        acknowledged = Outbox(producer_group="orders").prepare(conn, Message("orders", key="o-1"))
    producer = TransactionMQProducer("orders", private_database, listener=Dying(), check=False)
    producer.start()
    try:
        result = producer.send_message_in_transaction(Message("orders", key="o-2"))
    finally:
        private_stack.start_postgres()
        producer.shutdown()
    with connect(private_database) as conn:
        kept = conn.execute("SELECT message_id, state FROM outbox.message ORDER BY id").fetchall()
    assert kept == [(acknowledged.message_id, "UNKNOWN"), (kills[0], "UNKNOWN")]
    assert result.msg_id == kills[0]
