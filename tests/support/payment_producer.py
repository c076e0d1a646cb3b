"""RocketMQ's payment example as an application on the outbox: `… pay|serve DSN BANK_DSN TOPIC PARENT_PID`.

`pay` sends one payment, charges the card, and is killed before it can confirm. `serve` is the same application, started
again: it has nothing to send, and answers when it is asked.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import psycopg

from outbox import Message
from outbox.checking import LocalTransactionState
from outbox.records import MessageView
from outbox.rocketmq import LocalMessage, TransactionMQProducer
from tests.support.relay_entry import die_with

GROUP = "payments"


class PaymentListener:
    """Charges cards at a bank, and asks the bank when it is asked what became of a payment."""

    def __init__(self, bank_dsn: str) -> None:
        self._bank_dsn = bank_dsn

    def execute_local_transaction(self, msg: LocalMessage, arg: Any) -> LocalTransactionState:
        """Charge, durably; the confirmation is lost."""
        with psycopg.connect(self._bank_dsn) as bank:
            bank.execute("INSERT INTO charge (payment, amount) VALUES (%s, %s)", [msg.biz_id, arg])
        os.kill(os.getpid(), signal.SIGKILL)
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, msg: MessageView) -> LocalTransactionState:
        """Ask the bank."""
        with psycopg.connect(self._bank_dsn) as bank:
            found = bank.execute("SELECT FROM charge WHERE payment = %s", [msg.biz_id]).fetchone()
        return LocalTransactionState.UNKNOW if found is None else LocalTransactionState.COMMIT_MESSAGE


def main(what: str, dsn: str, bank_dsn: str, topic: str) -> None:
    """Pay, or serve until killed."""
    with TransactionMQProducer(GROUP, dsn, listener=PaymentListener(bank_dsn)) as producer:
        if what == "pay":
            message = Message(f"{topic}:paid", key="p-7", body="paid: 42 €", biz_type="payment", biz_id="p-7")
            producer.send_message_in_transaction(message, arg=42, check_after=0.5)
        signal.pause()


if __name__ == "__main__":
    die_with(int(sys.argv[5]))
    main(*sys.argv[1:5])
