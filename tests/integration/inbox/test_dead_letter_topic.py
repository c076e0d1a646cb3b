"""A copy of each dead letter in a topic of the group: sent with the row, once, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from outbox.errors import ConfigurationError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, PushConsumer
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.logins import Logins
from tests.support.waiting import wait_until

TOPIC = "DLQ.points"
ONCE = DelaySchedule.of([])
REDRIVE = """
    UPDATE outbox.inbox_parked SET state = 'retry', due_at = clock_timestamp(), attempts = 0 WHERE state = 'dead'
"""
TOGETHER = """
    SELECT m.xid::text::numeric % 4294967296 = p.xmin::text::numeric FROM outbox.message m, outbox.inbox_parked p
"""
AGAIN = "SELECT state = 'dead' AND fingerprint <> 'before' FROM outbox.inbox_parked"


def fail(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    apply(conn, message)
    raise ValueError("out of points")


@pytest.fixture(autouse=True)
def registered(inbox: InboxStage) -> None:
    """The dead letter topic, as an operator registers it."""
    inbox.conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, 4)", [TOPIC])


def consumer(inbox: InboxStage, topic: str, listener: Any = fail, **options: Any) -> PushConsumer:
    return inbox.consumer(topic, listener, **{"dead_letter_topic": TOPIC, **options})


def copies(inbox: InboxStage) -> list[tuple[Any, ...]]:
    """The copies that were sent."""
    return inbox.conn.execute(
        "SELECT key, body, headers FROM outbox.message WHERE topic = %s ORDER BY id", [TOPIC]
    ).fetchall()


def wait_dead(inbox: InboxStage, count: int = 1) -> None:
    dead = "SELECT count(*) FROM outbox.inbox_parked WHERE state = 'dead'"
    wait_until(lambda: inbox.conn.execute(dead).fetchone() == (count,), "it is dead")


@pytest.mark.feature("S-99")
def test_a_copy_is_sent_in_the_transaction_in_which_a_message_dies(inbox: InboxStage, topic: str) -> None:
    headers = (
        ("country", b"DE"),
        ("country", b"AT"),
        ("raw", b"\xff"),
        ("traceparent", b"x"),
        ("empty", None),
    )
    message_id = inbox.produce(topic, "k", "body", partition=2, headers=headers)
    inbox.flush()
    with consumer(inbox, topic, delays=DelaySchedule.of([0.05] * 2)):
        wait_dead(inbox)
    ((key, body, found),) = copies(inbox)
    assert (key, body) == (b"k", b"body")
    assert found.pop("dlq-failure").startswith("ValueError")
    assert found == {
        "country": "DE",
        "empty": None,
        "dlq-group": inbox.group,
        "dlq-message-id": message_id,
        "dlq-topic": topic,
        "dlq-partition": "2",
        "dlq-offset": "0",
        "dlq-attempts": "3",
    }
    assert inbox.conn.execute(TOGETHER).fetchall() == [(True,)]
    assert inbox.count("applied") == 0


@pytest.mark.parametrize(("version", "is_event"), [(b"1.0", True), (b"0.3", False)])
def test_a_copy_has_the_attributes_of_a_valid_event_only(
    inbox: InboxStage, topic: str, version: bytes, is_event: bool
) -> None:
    event = {"ce_specversion": version.decode(), "ce_type": "t", "ce_source": "/s", "ce_id": "e-1"}
    headers = tuple((name, value.encode()) for name, value in {**event, "country": "DE"}.items())
    inbox.produce(topic, "k", "body", headers=headers)
    inbox.flush()
    with consumer(inbox, topic, delays=ONCE):
        wait_dead(inbox)
    ((_, _, found),) = copies(inbox)
    assert found["country"] == "DE"
    assert {name: found.get(name) for name in event} == (event if is_event else dict.fromkeys(event))


def test_a_redrive_that_fails_again_sends_no_second_copy(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, delays=ONCE):
        wait_dead(inbox)
        for attempt in range(1, 3):
            inbox.conn.execute("UPDATE outbox.inbox_parked SET fingerprint = 'before'")
            inbox.conn.execute(REDRIVE)
            wait_until(
                lambda: inbox.conn.execute(AGAIN).fetchone() == (True,), f"it is dead again, {attempt}"
            )
    assert len(copies(inbox)) == 1
    inbox.conn.execute(REDRIVE)
    with consumer(inbox, topic, apply):
        inbox.wait_applied(1)
    assert inbox.count("outbox.inbox_parked") == 0
    assert len(copies(inbox)) == 1


def test_a_retry_that_succeeds_sends_no_copy(inbox: InboxStage, topic: str) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        return apply(conn, message) if message.reconsume_times else ConsumeResult.RECONSUME_LATER

    inbox.produce_numbered(topic, 5)
    with consumer(inbox, topic, listener, orderly=True):
        inbox.wait_applied(5)
    assert inbox.count("outbox.inbox_parked") == 0
    assert copies(inbox) == []


@pytest.mark.parametrize("retry", [False, True])
def test_a_listener_that_commits_by_itself_leaves_row_and_copy(
    inbox: InboxStage, topic: str, retry: bool
) -> None:
    def listener(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if retry and not message.reconsume_times:
            return ConsumeResult.RECONSUME_LATER
        apply(conn, message)
        conn.execute("COMMIT")
        return ConsumeResult.SUCCESS

    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, listener):
        wait_dead(inbox)
    assert len(copies(inbox)) == 1
    assert inbox.count("applied") == 1


def test_what_waits_behind_a_dead_letter_is_not_copied(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered_in(topic, 5)
    with consumer(inbox, topic, orderly=True, delays=ONCE):
        wait_until(lambda: inbox.count("outbox.inbox_parked") == 5, "all are parked")
    assert [body for _, body, _ in copies(inbox)] == [b"0"]


def test_a_copy_that_cannot_be_sent_does_not_keep_the_message_from_dying(
    inbox: InboxStage, topic: str
) -> None:
    inbox.conn.execute("UPDATE outbox.topic SET max_message_bytes = 1000 WHERE name = %s", [TOPIC])
    inbox.produce(topic, "k", "x" * 5000)
    inbox.produce(topic, "k", "small")
    inbox.flush()
    with consumer(inbox, topic, delays=ONCE):
        wait_dead(inbox, 2)
    assert [body for _, body, _ in copies(inbox)] == [b"small"]
    errors = inbox.conn.execute(
        "SELECT copy_error FROM outbox.inbox_parked ORDER BY octet_length(body)"
    ).fetchall()
    assert errors[0] == (None,)
    assert "too many for topic" in errors[1][0]


def test_without_a_topic_nothing_is_sent(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, delays=ONCE, dead_letter_topic=None):
        wait_dead(inbox)
    assert inbox.count("outbox.message") == 0
    assert inbox.conn.execute("SELECT is_copied FROM outbox.inbox_parked").fetchall() == [(False,)]


def test_a_topic_that_takes_no_copies_is_refused(inbox: InboxStage, topic: str, logins: Logins) -> None:
    with pytest.raises(ConfigurationError, match=r"run: outbox topic create DLQ\.other"):
        consumer(inbox, topic, dead_letter_topic="DLQ.other").start()
    with pytest.raises(ConfigurationError, match="dead_letter_topic: topic"):
        consumer(inbox, topic, dead_letter_topic="%DLQ%points")
    with pytest.raises(ConfigurationError, match="itself; allowed"):
        consumer(inbox, topic, dead_letter_topic=topic)
    with pytest.raises(ConfigurationError, match="GRANT outbox_producer"):
        consumer(inbox, topic, dsn=logins.make("outbox_consumer")).start()
    assert inbox.count("outbox.consumer_group") == 0


def test_a_consumer_that_may_send_needs_no_other_right(inbox: InboxStage, topic: str, logins: Logins) -> None:
    dsn = logins.make("outbox_consumer")
    user = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
    inbox.conn.execute(sql.SQL("GRANT outbox_producer TO {}").format(user))
    inbox.conn.execute("GRANT INSERT ON applied TO PUBLIC")
    inbox.produce_numbered(topic, 1)
    with consumer(inbox, topic, dsn=dsn, delays=ONCE):
        wait_dead(inbox)
    assert len(copies(inbox)) == 1
