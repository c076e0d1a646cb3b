"""What becomes of an order that is paid: a consumer group each for logistics, points and cart, each a process.

They are written in the three ways in which a listener may write: with psycopg, with a session of SQLAlchemy, and as an
`async def`. Each is applied once, because the consumer records the message in the listener's own transaction.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import psycopg
from sqlalchemy import text

from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from outbox.inbox.sqlalchemy import connections_of, session_listener
from outbox_local.shop.failures import SQL, Failure, die, is_due, open_database
from outbox_local.shop.names import CART, LOGISTICS, POINTS
from outbox_local.shop.tables import POINTS_PER_EURO, Credit, make_engine


def order_of(message: ConsumedMessage) -> dict[str, Any]:
    """What a message contains."""
    order: dict[str, Any] = json.loads(message.body or b"")
    return order


def ship(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
    """Logistics: ship the order."""
    order = order_of(message)["order"]
    conn.execute(SQL["ship"], {"order_id": order})
    with open_database() as apart:
        if is_due(apart, Failure.CRASH_LOGISTICS, order):
            die()
    return ConsumeResult.SUCCESS


def credit(session: Any, message: ConsumedMessage) -> ConsumeResult:
    """Points: credit the customer."""
    order = order_of(message)
    points = order["amount"] * POINTS_PER_EURO
    session.add(Credit(order["order"], order["customer"], points))
    session.execute(text(SQL["add_to_balance"]), {"customer": order["customer"], "points": points})
    return ConsumeResult.SUCCESS


async def empty_cart(conn: psycopg.AsyncConnection[Any], message: ConsumedMessage) -> ConsumeResult:
    """Cart: empty the cart of the order."""
    await conn.execute(SQL["empty_cart"], {"order_id": order_of(message)["order"]})
    return ConsumeResult.SUCCESS


def consumer(group: str, topic: str) -> PushConsumer:
    """Make the member of a group."""
    dsn = os.environ["OUTBOX_DSN"]
    options: dict[str, Any] = {
        "kafka": {"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"], "session.timeout.ms": 6000},
        "consume_from": FIRST,
        "workers": 4,
        "retry_workers": 1,
        "delays": DelaySchedule.of(["1s", "5s", "10s"]),
    }
    topics = {topic: "paid"}
    if group == LOGISTICS:
        return PushConsumer(group, topics, ship, dsn=dsn, **options)
    if group == CART:
        return PushConsumer(group, topics, empty_cart, dsn=dsn, **options)
    if group != POINTS:
        raise ValueError(f"group: {group!r}; allowed: {LOGISTICS}, {POINTS}, {CART}")
    engine = make_engine()
    return PushConsumer(
        group, topics, session_listener(credit, engine), dsn=connections_of(engine), **options
    )


def main(group: str, topic: str) -> None:
    """Run as `python -m outbox_local.shop.consumers GROUP TOPIC`, until SIGTERM."""
    member = consumer(group, topic)
    signal.signal(signal.SIGTERM, lambda number, frame: member.stop())
    member.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
