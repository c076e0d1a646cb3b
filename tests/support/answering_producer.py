"""A second process of a producer group, which sends nothing and answers: `… GROUP DSN BUSINESS_DSN PARENT_PID`."""

from __future__ import annotations

import signal
import sys

import psycopg

from outbox.checking import LocalTransactionState
from outbox.records import MessageView
from outbox.rocketmq import TransactionMQProducer
from tests.support.relay_entry import die_with

LONGEST_LOCAL_TRANSACTION = "2 s"
PAID = f"""
    SELECT EXISTS (SELECT FROM payment WHERE biz_id = %s AND state = 'paid'),
           clock_timestamp() > %s + interval '{LONGEST_LOCAL_TRANSACTION}'
"""


class Answers:
    """Looks the payment up; one that is not there may still be under way for a while."""

    def __init__(self, business_dsn: str) -> None:
        self._dsn = business_dsn

    def check_local_transaction(self, view: MessageView) -> LocalTransactionState:
        """COMMIT for what is paid, UNKNOWN for what could be paid yet, ROLLBACK for the rest."""
        with psycopg.connect(self._dsn) as conn:
            row = conn.execute(PAID, [view.biz_id, view.born_at]).fetchone()
        paid, over = row or (False, False)
        if paid:
            return LocalTransactionState.COMMIT
        return LocalTransactionState.ROLLBACK if over else LocalTransactionState.UNKNOWN


if __name__ == "__main__":
    group, dsn, business_dsn, parent = sys.argv[1:]
    die_with(int(parent))
    with TransactionMQProducer(group, dsn, listener=Answers(business_dsn)):
        sys.stdout.write("answering\n")
        sys.stdout.flush()
        signal.pause()
