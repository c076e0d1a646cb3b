"""The held key's lock: a message that is parked behind its key, and the last one of the key that leaves, at once.

    delivery                                  retry of the head
    take: the key is held, and locked
                                              lock_held_key: waits
    park_behind, commit
                                              take_out, follow: the next one is due

Without the lock of `take` the retry finds nothing behind its message, releases the key and commits; what is parked then
waits behind a key that nobody holds, for ever.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from uuid import uuid4

import psycopg

from outbox.drivers.psycopg_sync import run
from outbox.inbox import ConsumedMessage, DelaySchedule, plans
from outbox.inbox.failures import reported
from outbox.inbox.messages import Delivery
from tests.support.locks import see_blocked
from tests.support.plain_inserts import Connection

GROUP, TOPIC, KEY = 1, 1, b"k"


def delivery(offset: int, key: bytes = KEY) -> Delivery:
    now = datetime.now(UTC)
    message = ConsumedMessage(uuid4(), "t", 0, offset, key, b"body", (), now, now)
    return Delivery(message, TOPIC, now.date(), b"digest", key)


def fail(conn: Connection, message: Delivery) -> int:
    """Park a message that failed; return its number."""
    with conn.transaction():
        parked = run(conn, plans.park(GROUP, message, reported("failed"), DelaySchedule.of([60.0])))
    assert parked is not None
    assert parked.id is not None
    return parked.id


def test_a_message_that_is_parked_while_the_head_of_its_key_leaves_is_tried_next(
    database: str, conn: Connection
) -> None:
    conn.execute("INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t')")
    head, other = fail(conn, delivery(0)), fail(conn, delivery(1, b"other"))
    with psycopg.connect(database) as delivering, psycopg.connect(database) as retrying:
        with ThreadPoolExecutor(1) as pool:
            behind = delivery(2)
            taken = run(delivering, plans.take(GROUP, behind))
            assert (taken.is_new, taken.is_held) == (True, True)
            leaving = pool.submit(run, retrying, plans.remove(GROUP, TOPIC, KEY, head))
            see_blocked(conn, retrying, leaving)
            with conn.transaction():  # another key waits for nobody
                conn.execute("SET LOCAL lock_timeout = '10s'")
                run(conn, plans.remove(GROUP, TOPIC, b"other", other))
            run(delivering, plans.park_behind(GROUP, behind))
            delivering.commit()
            leaving.result(60)
        retrying.commit()
    assert conn.execute("SELECT off, state FROM outbox.inbox_parked").fetchall() == [(2, "retry")]
    assert conn.execute("SELECT order_key FROM outbox.inbox_held_key").fetchall() == [(KEY,)]
