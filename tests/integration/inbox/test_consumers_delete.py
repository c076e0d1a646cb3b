"""`outbox consumers delete`: nothing of a group is left, others keep all, and a member that stood still is refused."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from outbox.errors import ConsumerFailedError
from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule, pause_group, resume_group
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

COUNT = 12
OF_A_GROUP = """
    SELECT c.relname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid
    WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
        AND a.attname = 'group_id' ORDER BY 1
"""


def rows(inbox: InboxStage, number: int) -> dict[str, int]:
    """How many rows each table has of a group."""
    tables = [name for (name,) in inbox.conn.execute(OF_A_GROUP).fetchall()]
    return {name: inbox.count(f"outbox.{name}", f"group_id = {number}") for name in tables}


def number_of(inbox: InboxStage, group: str) -> int:
    [(number,)] = inbox.conn.execute(
        "SELECT id FROM outbox.consumer_group WHERE name = %s", [group]
    ).fetchall()
    return int(number)


@pytest.fixture
def other(inbox: InboxStage) -> Iterator[InboxStage]:
    """An innocent group of the same database."""
    stage = InboxStage(inbox.dsn, inbox.bootstrap_servers)
    yield stage
    stage.close()


def fails(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """A listener to which one message is dead."""
    return ConsumeResult.DEAD if message.body == b"1" else apply(conn, message)


def test_nothing_of_a_deleted_group_is_left_and_others_keep_all(
    inbox: InboxStage, other: InboxStage, make_topic: MakeTopic, logins: Logins
) -> None:
    topic, kafka = make_topic(partitions=1), ("--bootstrap-servers", inbox.bootstrap_servers)
    operator = ("--dsn", logins.make("outbox_operator"))
    command = ("consumers", "delete", inbox.group, "--reason", "replaced", "--yes", *operator)
    inbox.produce_numbered_in(topic, COUNT)
    for stage in (inbox, other):
        with stage.consumer(topic, fails, orderly=True, delays=DelaySchedule.of([])):
            wait_until(lambda stage=stage: stage.committed(topic) == COUNT, "all is done")  # type: ignore[misc]
            refused = outbox(*command) if stage is inbox else None
        if refused is not None:
            assert refused.code == 1
            assert f"members of group {inbox.group} run" in refused.err
    pause_group(inbox.conn, inbox.group, reason="x")
    resume_group(inbox.conn, inbox.group)
    number, kept = number_of(inbox, inbox.group), rows(other, number_of(inbox, other.group))
    before = rows(inbox, number)
    assert {name for name, count in before.items() if count} >= {
        "consumer_pause",
        "inbox",
        "inbox_held_key",
        "inbox_parked",
        "inbox_position",
    }
    assert "kafka-consumer-groups.sh" in succeed(*command).out
    assert set(rows(inbox, number).values()) == {0}
    assert inbox.committed(topic) == COUNT, "no broker was given"
    assert "with 0 rows of the inbox" in succeed(*command, *kafka).out, "given again, it goes on"
    assert inbox.committed(topic) < 0
    assert rows(other, number_of(inbox, other.group)) == kept
    assert other.committed(topic) == COUNT
    [(name, reason, who)] = inbox.conn.execute(
        "SELECT name, reason, deleted_by FROM outbox.deleted_consumer_group"
    ).fetchall()
    assert (name, reason, who.partition(":")[0]) == (inbox.group, "replaced", "operator")
    assert (
        "there is no consumer group 'never'"
        in outbox("consumers", "delete", "never", "--reason", "x", "--yes", *operator).err
    )
    inbox.conn.execute("DELETE FROM applied")
    with inbox.consumer(topic):
        inbox.wait_applied(COUNT)
    assert number_of(inbox, inbox.group) != number


@pytest.mark.parametrize("batch", [None, 5])
def test_a_member_that_stood_still_is_refused_by_name_and_applies_nothing(
    inbox: InboxStage, other: InboxStage, make_topic: MakeTopic, batch: int | None
) -> None:
    topic = make_topic(partitions=1)

    def listener(conn: Connection, messages: ConsumedMessage | list[ConsumedMessage]) -> ConsumeResult:
        for message in messages if isinstance(messages, list) else [messages]:
            apply(conn, message, "stood still")
        return ConsumeResult.SUCCESS

    with other.consumer(topic, lambda conn, message: apply(conn, message, "innocent")):
        consumer = inbox.consumer(topic, listener, batch=batch).start()
        inbox.produce_numbered_in(topic, 1)
        wait_until(lambda: inbox.count("applied") == 2, "both groups run")
        number = number_of(inbox, inbox.group)
        with psycopg.connect(inbox.dsn) as conn:  # in one transaction: the member renews every ten seconds
            conn.execute(
                "UPDATE outbox.consumer_member SET seen_at = pg_catalog.now() - interval '1 hour' WHERE group_id = %s",
                [number],
            )
            conn.execute("SELECT outbox.delete_consumer_group(%s, 'x')", [inbox.group])
            conn.execute("SELECT outbox.forget_deleted_group(%s, 100)", [number])
        inbox.produce_numbered_in(topic, COUNT)
        wait_until(
            lambda: inbox.count("applied", "member = 'innocent'") == COUNT + 1, "the other group goes on"
        )
        wait_until(lambda: consumer.vitals().defect is not None, "the member ends", seconds=120)
        with pytest.raises(
            ConsumerFailedError, match=f"number {number}, which this member joined, was deleted"
        ):
            consumer.close()
    assert inbox.count("applied", "member = 'stood still'") == 1
    assert set(rows(inbox, number).values()) == {0}
    assert inbox.count("outbox.consumer_group", f"name = '{inbox.group}'") == 0
