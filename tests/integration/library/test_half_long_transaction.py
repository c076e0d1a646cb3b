"""A long local transaction keeps its half message: however short the group's limits are, whoever would answer what."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.errors import DecidedOtherwiseError
from outbox.rocketmq import LocalMessage, TransactionMQProducer
from tests.support.checker_process import CheckerProcess, Groups
from tests.support.waiting import wait_until

LOCKED = "a local transaction holds the half message"
LOOKS = """
    SELECT due_at::text FROM outbox.pending_check WHERE producer_group = %s AND remark = %s
"""
MESSAGE = Message("payments", "k", b"long")


class Slow:
    """A listener whose local transaction lasts until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.end = Event(), Event()

    def execute_local_transaction(self, msg: LocalMessage, arg: Any) -> bool:
        """Take its time."""
        self.begun.set()
        return self.end.wait(600)

    def check_local_transaction(self, view: object) -> bool:
        """Be wrong: nothing is here yet."""
        return False


def stay_until_looked_at(groups: Groups, group: str, looks: int) -> None:
    """Wait until a checker has met the lock so many times; each time it says so and comes back about a second later."""
    seen: set[str] = set()

    def often() -> bool:
        row = groups.conn.execute(LOOKS, [group, LOCKED]).fetchone()
        seen.update(row or ())
        return len(seen) >= looks

    wait_until(often, f"the checker meets the lock {looks} times", seconds=60 + 10 * looks)


def hold_two(database: str, looks: int) -> None:
    """Run a listener's local transaction, and one of the verbs', while a checker that would end both looks on.

    The listener's group is asked, and the answer is ROLLBACK; the other's is over its greatest age from the start.
    """
    groups, listener = Groups(database), Slow()
    query = {"kind": "sql", "query": "SELECT false"}
    groups.register("asked", query, message_type="TRANSACTION")
    groups.register("old", query, max_age="0.1 s")
    outbox = Outbox("old")
    with psycopg.connect(database) as conn:
        joined = outbox.prepare(conn, MESSAGE)
        abandoned = outbox.prepare(conn, MESSAGE)
        conn.commit()
        outbox.join(conn, joined)
        producer = TransactionMQProducer("asked", database, listener=listener, check=False)
        with CheckerProcess(database), producer, ThreadPoolExecutor(1) as pool:
            sending = pool.submit(producer.send_message_in_transaction, MESSAGE)
            try:
                assert listener.begun.wait(20)
                stay_until_looked_at(groups, "asked", looks)
                assert groups.states("asked") == {"UNKNOWN": 1}
                assert groups.checks("asked") == 0, "a locked half message uses up no check"
                groups.wait_for("old", {"UNKNOWN": 1, "ROLLED_BACK": 1})
                outbox.commit(conn, joined)
                conn.commit()
            finally:
                listener.end.set()
            assert sending.result(20).local_transaction_state == "COMMIT"
        with pytest.raises(DecidedOtherwiseError):
            outbox.join(conn, abandoned)
    assert groups.states("asked") == {"COMMITTED": 1}
    assert groups.states("old") == {"COMMITTED": 1, "ROLLED_BACK": 1}
    groups.close()


@pytest.mark.feature("S-42")
def test_a_local_transaction_longer_than_every_limit_is_not_rolled_back(database: str) -> None:
    hold_two(database, looks=3)
