"""The consumer of docker-compose.yml: ten points for each message of the topic `orders`. Put your own in its place."""

from __future__ import annotations

import os
import signal
from typing import Any

import psycopg

from outbox.inbox import FIRST, ConsumedMessage, ConsumeResult, PushConsumer
from outbox.inbox.metrics import serve_metrics

DSN = os.environ["OUTBOX_DSN"]


def add_points(conn: psycopg.Connection[Any], message: ConsumedMessage) -> ConsumeResult:
    """Apply a message; the consumer commits this with the record that the message was handled."""
    customer = (message.key or b"").decode()
    conn.execute("INSERT INTO public.points (customer, points) VALUES (%s, 10)", [customer])
    return ConsumeResult.SUCCESS


with psycopg.connect(DSN) as conn:
    conn.execute(
        "CREATE TABLE IF NOT EXISTS public.points (customer text, points integer, at timestamptz DEFAULT now())"
    )

consumer = PushConsumer(
    "points",
    {"orders": "*"},
    add_points,
    orderly=True,
    consume_from=FIRST,
    dsn=DSN,
    kafka={"bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"]},
)
signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
with serve_metrics([consumer], 9466, "0.0.0.0", livez=9476):  # noqa: S104  (in a container)
    consumer.run()
