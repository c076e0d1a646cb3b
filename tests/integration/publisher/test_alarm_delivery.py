"""One turn of what finds alarms, and of what delivers them, against receivers that are slow or refuse."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial

import pytest

from outbox_relay.alarms.delivery import Delivery
from outbox_relay.alarms.observing import BACKLOG, observe
from outbox_relay.operations.status import late_topics
from tests.support.alarm_receiver import Receiver
from tests.support.alarm_turns import take_turn
from tests.support.plain_inserts import Connection, connect_as_service, insert
from tests.support.stopped_lanes import set_aside
from tests.support.waiting import wait_until

ROLLED_BACK = "half_message_rolled_back"
DUE = "UPDATE outbox.notice SET send_after = clock_timestamp()"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


def raise_one(conn: Connection, database: str) -> None:
    conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('shop', 'rolled_back', '2 were')"
    )
    take_turn(database)


def standing(conn: Connection) -> list[tuple[str, str, bool]]:
    """Kind, cause, and whether it is over."""
    return conn.execute(
        "SELECT kind, cause, cleared_at IS NOT NULL FROM outbox.notice ORDER BY kind"
    ).fetchall()


@pytest.mark.feature("H-15")
def test_a_receiver_that_does_not_reply_costs_a_deadline_and_holds_no_transaction(
    conn: Connection, database: str, receiver: Receiver
) -> None:
    raise_one(conn, database)
    receiver.replies.clear()
    with connect_as_service(database) as sending:
        sending.execute("SET ROLE outbox_relay")
        pid = sending.info.backend_pid
        turn = threading.Thread(target=Delivery(receiver.webhook(), 1.0).send_due, args=(sending,))
        turn.start()
        wait_until(lambda: receiver.taken, "the request is there")
        state = conn.execute("SELECT state FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone()
        take_turn(database)
        turn.join(30)
        assert not turn.is_alive(), "the deadline has ended the request"
    assert state == ("idle",)
    row = conn.execute(
        "SELECT claim, tries, raise_sent_at, send_after > clock_timestamp() FROM outbox.notice"
    ).fetchone()
    assert row == (None, 1, None, True)
    receiver.replies.set()
    conn.execute(DUE)
    Delivery(receiver.webhook()).send_due(conn)
    first, second = receiver.of(ROLLED_BACK)
    assert first == second, "the receiver sees by id and event that it has it"


@pytest.mark.feature("H-15")
def test_a_receiver_with_another_secret_refuses_and_gets_it_when_they_agree(
    conn: Connection, database: str, receiver: Receiver
) -> None:
    raise_one(conn, database)
    Delivery(receiver.webhook("another-secret-of-the-relay")).send_due(conn)
    assert [question.json["kind"] for question in receiver.refused] == [ROLLED_BACK]
    assert receiver.taken == []
    conn.execute(DUE)
    Delivery(receiver.webhook()).send_due(conn)
    assert receiver.events(ROLLED_BACK) == ["raised"]
    Delivery(receiver.webhook()).send_due(conn)
    assert receiver.events(ROLLED_BACK) == ["raised"], "what was taken is not due again"


@pytest.mark.feature("H-15")
def test_an_end_is_sent_after_its_beginning_and_a_new_alarm_after_both(
    conn: Connection, database: str, receiver: Receiver
) -> None:
    raise_one(conn, database)
    conn.execute("DELETE FROM outbox.alarm")
    take_turn(database)
    # It has begun again before the receiver has heard of anything.
    raise_one(conn, database)
    Delivery(receiver.webhook()).send_due(conn)
    take_turn(database)
    Delivery(receiver.webhook()).send_due(conn)
    assert receiver.events(ROLLED_BACK) == ["raised", "cleared", "raised"]
    first, over, again = receiver.of(ROLLED_BACK)
    assert first["id"] == over["id"] != again["id"]


@pytest.mark.feature("H-15")
def test_what_was_not_searched_for_stays_as_it_is(conn: Connection, database: str) -> None:
    insert(conn, "orders", "k", "b")
    set_aside(conn, *(row[0] for row in conn.execute("SELECT id FROM outbox.message").fetchall()))
    take_turn(database)
    assert standing(conn) == [("message_dead", "topic orders", False)]
    conn.execute("UPDATE outbox.message SET state = 'SKIPPED'")
    take_turn(database, slow=False)
    assert standing(conn) == [("message_dead", "topic orders", False)]
    take_turn(database)
    assert standing(conn) == [("message_dead", "topic orders", True)]


@pytest.mark.feature("H-15")
def test_one_process_observes_at_a_time(conn: Connection, database: str) -> None:
    with connect_as_service(database) as first:
        assert observe(first, None)
        raised = "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('shop', 'silent', 'x')"
        conn.execute(raised)
        with connect_as_service(database) as second:
            assert not observe(second, None), "the first one's session has the turn"
        assert standing(conn) == []
    wait_until(lambda: _observes(database), "its end gives the turn back")
    assert standing(conn) == [("group_silent", "group shop", False)]


HOLD = "INSERT INTO outbox.parked_key (number, lane, topic, order_key, head, error)"
CAUSES = {
    "hold partition 2 of topic t": (
        f"{HOLD.replace('order_key', 'partition')} VALUES (1, 3, 't', 2, 1, 'X'), (2, 4, 't', 2, 2, 'X')",
        "DELETE FROM outbox.parked_key",
    ),
    "hold key of topic t": (
        f"{HOLD} VALUES (1, 3, 't', 'k', 1, 'X'), (2, 3, 't', 'l', 2, 'Y')",
        "DELETE FROM outbox.parked_key",
    ),
    "hold message of topic t": (f"{HOLD} VALUES (1, 3, 't', NULL, 1, 'X')", "DELETE FROM outbox.parked_key"),
    "hold topic t": (
        f"{HOLD} VALUES (-1, 3, 't', NULL, 1, 'X'), (-2, 4, 't', NULL, 2, 'X')",
        "DELETE FROM outbox.parked_key",
    ),
    "message_dead": (
        "INSERT INTO outbox.waiting (id, message_id, reason) SELECT id, message_id, 'expired' FROM outbox.message",
        "DELETE FROM outbox.waiting",
    ),
    "half_message_exhausted": (
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('shop', 'exhausted', 'X')",
        "DELETE FROM outbox.alarm",
    ),
    ROLLED_BACK: (
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('shop', 'rolled_back', 'X')",
        "DELETE FROM outbox.alarm",
    ),
    BACKLOG: ("INSERT INTO outbox.message (topic, body) VALUES ('t', 'x')", "DELETE FROM outbox.message"),
}


@pytest.mark.feature("H-15")
@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_sent_once_however_often_it_is_found_and_cleared_once(
    conn: Connection, database: str, receiver: Receiver, name: str
) -> None:
    begin, end = CAUSES[name]
    kind, _, cause = name.partition(" ")
    if kind == "message_dead":
        insert(conn, "t", "k", "b")
    limit = 0.0 if kind == BACKLOG else 3_600.0

    def turn() -> None:
        take_turn(database, partial(late_topics, limit=limit))
        Delivery(receiver.webhook()).send_due(conn)

    turn()
    assert receiver.taken == []
    conn.execute(begin)
    for _ in range(3):
        turn()
    assert receiver.events(kind) == ["raised"]
    assert receiver.taken[0].json["cause"] == cause or not cause
    conn.execute(end)
    for _ in range(3):
        turn()
    assert receiver.events(kind) == ["raised", "cleared"]
    assert len(receiver.taken) == 2


def _observes(database: str) -> bool:
    with connect_as_service(database) as conn:
        return observe(conn, None)


@pytest.mark.feature("H-15")
def test_a_topic_is_late_only_when_its_oldest_message_is_older_than_the_limit(
    conn: Connection, database: str
) -> None:
    insert(conn, "orders", "k", "b")
    with connect_as_service(database) as reading:
        reading.execute("SET ROLE outbox_relay")
        assert late_topics(reading, limit=3_600.0) == []
        [late] = late_topics(reading, limit=0.0)
        assert observe(reading, partial(late_topics, limit=0.0))
    assert (late.name, late.backlog) == ("orders", 1)
    assert 0.0 < late.oldest < 3_600.0
    assert standing(conn) == [("backlog", "topic orders", False)]
