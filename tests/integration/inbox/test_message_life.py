"""`outbox message show` tells a message's life on both sides: of the outbox, and of the consumer groups beside it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from outbox.inbox import ConsumedMessage, ConsumeResult, DelaySchedule
from outbox_relay.operations.consumers import STATEMENTS as SQL
from outbox_relay.operations.messages import Row
from tests.integration.inbox.test_dlq_plans import explain
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import connect, insert
from tests.support.query_plans import rows_read
from tests.support.relay_in_process import publish
from tests.support.waiting import wait_until

HOSTILE = "<script>alert('key')</script>"


def refuse_bad(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
    """Fail with what has the body "bad"."""
    if message.body == b"bad":
        raise ValueError("<b>not</b> wanted")
    return apply(conn, message)


def states(dsn: str, message_id: str) -> list[tuple[str, str]]:
    """Each group's state of a message, as `outbox message show --json` has it."""
    shown: Row = succeed("message", "show", message_id, "--json", "--dsn", dsn).json
    return [(one["consumer_group"], one["state"]) for one in shown["consumers"]]


def wait_for_states(dsn: str, message_id: str, wanted: set[str]) -> None:
    """Wait until the groups have these states of a message."""
    wait_until(lambda: {state for _, state in states(dsn, message_id)} == wanted, f"the groups have {wanted}")


@pytest.mark.feature("S-86")
def test_each_group_is_shown_with_what_became_of_the_message(
    inbox: InboxStage, topic: str, tmp_path: Path
) -> None:
    dsn = inbox.dsn
    with connect(dsn) as conn:
        good, bad, next_of_bad = (
            insert(conn, topic, key, body) for key, body in (("ok", "1"), (HOSTILE, "bad"), (HOSTILE, "2"))
        )
    assert states(dsn, good) == [], "it is not published"
    publish(dsn, inbox.bootstrap_servers, 3)
    late = InboxStage(dsn, inbox.bootstrap_servers, group="late")
    try:
        with (
            inbox.consumer(topic, refuse_bad, orderly=True, delays=DelaySchedule.of(["1h"])),
            late.consumer(topic, refuse_bad, orderly=True, delays=DelaySchedule.of([])),
        ):
            wait_for_states(dsn, good, {"applied"})
            wait_for_states(dsn, bad, {"retrying", "dead"})
            wait_for_states(dsn, next_of_bad, {"waiting"})
    finally:
        late.close()
    assert states(dsn, bad) == sorted([(inbox.group, "retrying"), ("late", "dead")])
    [waits, _] = succeed("message", "show", next_of_bad, "--json", "--dsn", dsn).json["consumers"]
    assert (waits["front"], waits["behind"]) == (bad, 0)

    told = succeed("message", "show", bad, "--dsn", dsn).out
    assert "consumer group late failed with it, attempt 1: ValueError" in told
    assert "dead after 1 attempt: ValueError" in told
    assert "1 message of its key behind it" in told
    assert "try it again: outbox dlq redrive " in told
    assert f"waits behind {bad}" in succeed("message", "show", next_of_bad, "--dsn", dsn).out

    page_file = tmp_path / "life.html"
    succeed("message", "show", bad, "--body", "--html", str(page_file), "--dsn", dsn)
    page = page_file.read_text(encoding="utf-8")
    assert "<script" not in page, "a key runs nothing"
    assert "&lt;script&gt;alert(&#x27;key&#x27;)" in page
    assert "default-src 'none'" in page
    assert page.count("<li class=") == 4, "born, published, failed twice"
    assert "<pre>bad</pre>" in page
    hidden = tmp_path / "without-body.html"
    succeed("message", "show", bad, "--html", str(hidden), "--dsn", dsn)
    assert "<pre>bad</pre>" not in hidden.read_text(encoding="utf-8")


def test_a_group_that_has_not_come_to_the_message_is_shown_with_its_place(
    inbox: InboxStage, topic: str
) -> None:
    with connect(inbox.dsn) as conn:
        first = insert(conn, topic, "k", "1")
        publish(inbox.dsn, inbox.bootstrap_servers, 1)
        with inbox.consumer(topic, apply):
            inbox.wait_applied(1)
        second = insert(conn, topic, "k", "2")
        publish(inbox.dsn, inbox.bootstrap_servers, 1)
        assert states(inbox.dsn, first) == [(inbox.group, "applied")]
        assert states(inbox.dsn, second) == [(inbox.group, "unread")]
        told = succeed("message", "show", second, "--dsn", inbox.dsn).out
        assert f"consumer group {inbox.group}: not read yet: the group is at offset 1" in told
        conn.execute("UPDATE outbox.inbox_position SET next_off = 9")
        assert states(inbox.dsn, second) == [(inbox.group, "passed")]


def test_an_undecided_half_message_is_shown_with_what_comes_next(database: str, tmp_path: Path) -> None:
    with connect(database) as conn:
        half = insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="shop")
    told = succeed("message", "show", half, "--dsn", database).out
    assert "born UNKNOWN by" in told
    assert "next  will be asked at " in told
    page_file = tmp_path / "half.html"
    succeed("message", "show", half, "--html", str(page_file), "--dsn", database)
    assert "will be asked at" in page_file.read_text(encoding="utf-8")


@pytest.mark.parametrize("analyzed", [False, True])
def test_what_groups_did_with_a_message_is_read_by_indexes(inbox: InboxStage, analyzed: bool) -> None:
    conn, rows = inbox.conn, 20_000
    conn.execute(f"""
        INSERT INTO outbox.consumer_group (name, subscription, orderly)
            SELECT 'g' || i, '{{"t": "*"}}', true FROM generate_series(1, 5) i;
        INSERT INTO outbox.inbox_topic (name, kafka_id) VALUES ('t', 'c/t');
        INSERT INTO outbox.inbox (group_id, message_id, born_on, topic_id, part, off, digest)
            SELECT 1 + i % 5, pg_catalog.gen_random_uuid(), '2026-11-01', 1, 0, i, 'd'
            FROM generate_series(1, {rows}) i;
        INSERT INTO outbox.inbox_parked (group_id, message_id, born_on, topic_id, part, off, digest, order_key,
                header_names, header_values, published_at, state, attempts)
            SELECT 1 + i % 5, pg_catalog.gen_random_uuid(), '2026-11-01', 1, 0, i, 'd', 'k', '{{}}', '{{}}',
                pg_catalog.now(), 'waiting', 0 FROM generate_series(1, {rows}) i
    """)
    if analyzed:
        conn.execute("ANALYZE outbox.inbox, outbox.inbox_parked, outbox.consumer_group")
    plan = explain(
        conn,
        SQL["of_message"],
        message_id=UUID(int=1),
        born_at="2026-11-01T12:00Z",
        topic="t",
        partition=0,
        offset=7,
    )
    assert plan["Actual Rows"] == 5
    assert rows_read(plan, "inbox") + rows_read(plan, "inbox_parked") <= 10
