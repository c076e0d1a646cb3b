"""What a role may do: consumers need outbox_consumer only, and readers see no bodies."""

from __future__ import annotations

import psycopg
import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.logins import Logins
from tests.support.waiting import wait_until


def test_a_consumer_needs_the_role_outbox_consumer_only(
    inbox: InboxStage, logins: Logins, topic: str
) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"1" and message.reconsume_times < 2:
            raise ValueError("not yet")
        return apply(conn, message)

    dsn = logins.make("outbox_consumer")
    inbox.conn.execute("GRANT INSERT ON applied TO PUBLIC")
    inbox.produce(topic, "k0", "0", born_at=1_000_000_000)
    inbox.produce_numbered(topic, 12, keys=3, start=1)
    with inbox.consumer(topic, listener, dsn=dsn, orderly=True):
        inbox.wait_applied(13)
        wait_until(lambda: not inbox.count("outbox.inbox_held_key"), "no key is held")
    assert inbox.by_key() == {"k0": [0, 3, 6, 9, 12], "k1": [1, 4, 7, 10], "k2": [2, 5, 8, 11]}
    assert inbox.count("outbox.inbox_default") == 1


@pytest.mark.parametrize("role", ["outbox_reader", "outbox_operator", "outbox_producer"])
def test_others_see_no_bodies_of_parked_messages(
    inbox: InboxStage, logins: Logins, topic: str, role: str
) -> None:
    inbox.produce(topic, "k", "secret")
    inbox.flush()
    with inbox.consumer(topic, lambda *_: ConsumeResult.RECONSUME_LATER, delays=DelaySchedule.of([])):
        wait_until(lambda: inbox.count("outbox.inbox_parked"), "it is parked")
    with logins.connect(role) as conn:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT body FROM outbox.inbox_parked")
        if role != "outbox_producer":
            assert conn.execute("SELECT state FROM outbox.inbox_parked").fetchall() == [("dead",)]


def test_a_day_with_rows_elsewhere_gets_no_partition(inbox: InboxStage) -> None:
    insert = (
        "INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest) "
        "VALUES (1, '00000000-0000-0000-0000-000000000001', current_date - 3, 1, 0, 0, 'd') ON CONFLICT DO NOTHING"
    )
    ensure = "SELECT outbox.ensure_inbox_partition(current_date - %s)"
    assert inbox.conn.execute(insert).rowcount == 1
    assert inbox.conn.execute(ensure, [3]).fetchone() == (False,)
    assert inbox.conn.execute(insert).rowcount == 0
    assert inbox.conn.execute(ensure, [2]).fetchone() == (True,)
    assert inbox.conn.execute(ensure, [2]).fetchone() == (True,)
    assert [inbox.conn.execute(ensure, [days]).fetchone() for days in (4000, -30)] == [(False,), (False,)]
