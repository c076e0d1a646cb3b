"""The lane that the library says is the lane that the table computes."""

from __future__ import annotations

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.partitioning.lanes import LANES, lane_of
from tests.support.plain_inserts import Connection

COMPUTED = """
SELECT lane, outbox.lane_of(topic, queue, coalesce(order_key, key), id) FROM outbox.message ORDER BY id
"""


def test_a_message_sent_and_one_inserted_share_a_lane(conn: Connection) -> None:
    outbox = Outbox(selectors={"last": lambda partitions, message, arg: partitions - 1})
    with conn, conn.transaction():
        outbox.register_topic(conn, "chosen", 3)
        sent = [
            *(Message("t", key=f"k-{number}") for number in range(40)),
            *(Message("t", order_key=number, selector="modulo") for number in range(-5, 20)),
            *(Message("t", key="k", queue=queue) for queue in (0, 1, 7, 2**31 - 1)),
            Message("chosen", key="k", selector="last"),
            Message("t", key="ключ"),
            Message("t", key=b"\x00\xff"),
            Message("t", key=""),
        ]
        for message in sent:
            outbox.send(conn, message)
        outbox.send_many(conn, sent)
        rows = conn.execute(COMPUTED).fetchall()
    assert len(rows) == 2 * len(sent)
    assert [said for said, _ in rows] == [computed for _, computed in rows]
    assert {said for said, _ in rows} == set(range(LANES))


def test_messages_without_an_order_key_take_all_lanes() -> None:
    assert {lane_of("t", None, None) for _ in range(LANES)} == set(range(LANES))


def test_the_trigger_guards_births_whatever_lane_is_said(conn: Connection) -> None:
    with conn, pytest.raises(psycopg.errors.CheckViolation, match="cannot be born DEAD"):
        conn.execute("INSERT INTO outbox.message (topic, state, lane) VALUES ('t', 'DEAD', 1)")
