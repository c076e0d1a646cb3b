"""A member of a consumer group: a process whose listener writes down each message by the inbox, until SIGTERM."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import psycopg

from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox_relay.proving.reader import client_settings
from outbox_relay.proving.workload import SQL


def apply(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
    """Write the effect, in the transaction that records the message."""
    conn.execute(SQL["apply"], {"message_id": message.message_id})
    return ConsumeResult.SUCCESS


def main(group: str, topic: str) -> None:
    """Run as `python -m outbox_relay.proving.applier GROUP TOPIC`."""
    member = PushConsumer(
        group,
        {topic: "*"},
        apply,
        dsn=os.environ["OUTBOX_DSN"],
        kafka={**client_settings(), "session.timeout.ms": 6000},
        consume_from=FIRST,
        orderly=True,
        workers=4,
        retry_workers=1,
        delays=DelaySchedule.of(["1s", "2s", "5s"]),
    )
    signal.signal(signal.SIGTERM, lambda number, frame: member.stop())
    member.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
