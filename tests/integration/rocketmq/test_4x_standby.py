"""A half message whose standby may not have it: its local transaction is not run."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox import Message
from outbox.rocketmq import LocalTransactionState, SendStatus, TransactionMQProducer
from tests.support.rocketmq_scripts import Listener, Truth
from tests.support.waiting import wait_until

ROLLBACK = LocalTransactionState.ROLLBACK
MESSAGE = Message("orders:created", key="o-7", body=b"seven")


@pytest.fixture
def without_standby(private_database: str) -> Iterator[Truth]:
    """A database whose server waits for a standby that does not exist, and what is committed in it."""
    truth = Truth(private_database)
    truth.conn.execute("SET synchronous_commit = local")
    yield truth
    truth.conn.execute("ALTER SYSTEM RESET synchronous_standby_names")
    truth.conn.execute("SELECT pg_reload_conf()")
    truth.close()


@pytest.mark.feature("S-18")
@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("pg_cancel_backend", SendStatus.FLUSH_SLAVE_TIMEOUT),
        ("pg_terminate_backend", SendStatus.FLUSH_DISK_TIMEOUT),
    ],
)
def test_a_half_message_the_standby_may_not_have_runs_nothing(
    without_standby: Truth, private_database: str, end: str, status: SendStatus
) -> None:
    truth = without_standby
    listener = Listener()
    with TransactionMQProducer("orders", private_database, listener=listener, check=False) as producer:
        truth.conn.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        truth.conn.execute("SELECT pg_reload_conf()")
        wait_until(
            lambda: truth.conn.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",), "reloaded"
        )
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(producer.send_message_in_transaction, MESSAGE)
            wait_until(lambda: _end_waiting(truth, end) or sending.done(), "the commit waits for the standby")
            try:
                result = sending.result(30)
            finally:
                _end_waiting(truth, "pg_terminate_backend")  # or the thread would keep a failing test waiting
    assert result.send_status is status
    assert result.local_transaction_state is ROLLBACK
    assert "half message rolled back" in (result.remark or "")
    assert (listener.calls, truth.states()) == ([], ["ROLLED_BACK"])


def _end_waiting(truth: Truth, end: str) -> bool:
    return bool(
        truth.conn.execute(
            psycopg.sql.SQL("SELECT {}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").format(
                psycopg.sql.Identifier(end)
            )
        ).fetchall()
    )
