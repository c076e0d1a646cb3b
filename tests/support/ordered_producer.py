"""RocketMQ's ordered producer, as an application on the outbox would write it: run as `… DSN TOPIC PARENT_PID`.

Twenty messages, i = 5 … 24: each is a step of order i / 5, and the order's id is the selector's `arg`. The order's row
is written first, in the same transaction: it serialises what belongs to one order.
"""

from __future__ import annotations

import sys

import psycopg

from outbox import Message, Outbox
from tests.support.relay_entry import die_with

TAGS = ("创建订单", "支付", "发货", "收货", "五星好评")


def send_orders(dsn: str, topic: str) -> None:
    """Send what RocketMQ's example sends; `id % queues` is the selector modulo."""
    outbox = Outbox(producer_group="please_rename_unique_group_name")
    with psycopg.connect(dsn) as conn:
        outbox.register_topic(conn, topic, 4, message_type="FIFO", selector="modulo")
        conn.execute("CREATE TABLE IF NOT EXISTS orders (id integer PRIMARY KEY, step text NOT NULL)")
    for i in range(5, 25):
        order, tag = i // 5, TAGS[i % len(TAGS)]
        with psycopg.connect(dsn) as conn:
            conn.execute(
                "INSERT INTO orders VALUES (%(id)s, %(tag)s) ON CONFLICT (id) DO UPDATE SET step = %(tag)s",
                {"id": order, "tag": tag},
            )
            outbox.send(
                conn,
                Message(
                    f"{topic}:{tag}",
                    body=f"Hello RocketMQ 订单 {order}: {tag}",
                    order_key=order,
                    index_keys=[f"uniqueId:{i}"],
                ),
            )


if __name__ == "__main__":
    die_with(int(sys.argv[3]))
    send_orders(sys.argv[1], sys.argv[2])
