"""A batch whose listener discards a message that another session locks before that is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import pq

from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, ConsumeResult, plans
from outbox.inbox.batches import handle_batch
from outbox.inbox.sessions import LOCK_WAIT, limit_transactions
from tests.integration.inbox.test_held_keys import GROUP, delivery
from tests.support.plain_inserts import Connection


def test_what_a_listener_returned_for_others_holds_if_a_discarded_message_is_locked(
    database: str, conn: Connection
) -> None:
    conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    later, discarded, applied = (delivery(offset, b"%d" % offset) for offset in range(3))
    by_offset = (ConsumeResult.RECONSUME_LATER, ConsumeResult.DISCARD, ConsumeResult.SUCCESS)
    called: list[int] = []
    with psycopg.connect(database) as other:

        class Rolled(psycopg.Connection[Any]):
            def rollback(self) -> None:
                super().rollback()
                if called and other.info.transaction_status == pq.TransactionStatus.IDLE:
                    run(other, plans.take(GROUP, discarded))

        def listener(_conn: Connection, messages: Sequence[ConsumedMessage]) -> list[ConsumeResult]:
            called.append(len(messages))
            return [by_offset[each.offset] for each in messages]

        with Rolled.connect(database) as batch:
            limit_transactions(batch, 60, lock_wait=LOCK_WAIT)
            outcome = handle_batch(batch, GROUP, listener, [later, discarded, applied])
        other.rollback()
    assert list(outcome.failed) == [0]
    assert outcome.alone == [1]
    assert outcome.again == [2]
    assert outcome.done == []
