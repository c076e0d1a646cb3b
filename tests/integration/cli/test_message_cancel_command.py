"""`outbox message cancel`: exactly one outcome, and what it was is told."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, decide, insert
from tests.support.publications import own_lanes, positions, record, snapshot, value


def delayed(conn: Connection, **columns: Any) -> str:
    return insert(conn, "orders", "k", "b", **{"deliver_at": "2100-01-01", **columns})


def release(conn: Connection) -> None:
    """What the relay does with a message that is due."""
    conn.execute("DELETE FROM outbox.waiting")
    conn.execute("UPDATE outbox.message SET deliver_at = '2020-01-01'")


def test_a_delayed_message_is_cancelled_once_and_audited(database: str, conn: Connection) -> None:
    message_id = delayed(conn)
    ran = succeed("message", "cancel", message_id, "--reason", "withdrawn", OUTBOX_DSN=database)
    assert "is cancelled: it is never published" in ran.out
    assert value(conn, "SELECT count(*) FROM outbox.waiting") == 0
    row = conn.execute("SELECT to_state, reason, actor LIKE 'operator:%' FROM outbox.event").fetchone()
    assert row == ("CANCELLED", "withdrawn", True)
    again = succeed("message", "cancel", message_id, "--reason", "again", OUTBOX_DSN=database)
    assert "was cancelled before, at 20" in again.out
    assert "(withdrawn)" in again.out
    found = succeed("message", "cancel", message_id, "--reason", "again", "--json", OUTBOX_DSN=database).json
    assert (found["result"], found["state"], found["reason"]) == ("already", "CANCELLED", "withdrawn")


def test_a_committed_half_message_is_cancelled_until_it_is_due(database: str, conn: Connection) -> None:
    message_id = delayed(conn, state="UNKNOWN", producer_group="shop")
    ran = outbox("message", "cancel", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "outbox tx rollback" in ran.err
    decide(conn, message_id, "COMMITTED")
    succeed("message", "cancel", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert value(conn, "SELECT state FROM outbox.message") == "CANCELLED"


def test_a_released_message_is_too_late_to_cancel(database: str, conn: Connection) -> None:
    own_lanes(conn)
    message_id = delayed(conn)
    release(conn)
    ran = outbox("message", "cancel", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "the relay has released it" in ran.err
    record(conn, positions(conn), seen=snapshot(conn), batch=1, partition=3, offset=40)
    ran = outbox("message", "cancel", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "to orders, partition 3, offset 40" in ran.err
    assert value(conn, "SELECT state FROM outbox.message") == "COMMITTED"
    assert value(conn, "SELECT count(*) FROM outbox.event") == 0


def test_a_message_that_the_relay_holds_is_not_waited_for_for_ever(database: str, conn: Connection) -> None:
    message_id = delayed(conn)
    with psycopg.connect(database) as relay:
        relay.execute("SELECT FROM outbox.message FOR UPDATE")
        ran = outbox("message", "cancel", message_id, "--reason", "r", "--wait", "0", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "nothing was changed" in ran.err
    assert value(conn, "SELECT state FROM outbox.message") == "COMMITTED"


def test_what_does_not_wait_cannot_be_cancelled(database: str, conn: Connection) -> None:
    for message_id, told in (
        (insert(conn, "orders", "k", "b"), "has no delivery time"),
        (delayed(conn, state="UNKNOWN", producer_group="shop"), "a half message that is not committed"),
    ):
        ran = outbox("message", "cancel", message_id, "--reason", "r", OUTBOX_DSN=database)
        assert ran.code == 1
        assert told in ran.err
    decide(conn, message_id, "ROLLED_BACK")
    ran = outbox("message", "cancel", message_id, "--reason", "r", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "ROLLED_BACK" in ran.err
    assert outbox("message", "cancel", "4711", "--reason", "r", OUTBOX_DSN=database).code == 1
    assert outbox("message", "cancel", message_id, OUTBOX_DSN=database).code == 2
