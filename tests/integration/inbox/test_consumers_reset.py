"""`outbox consumers reset`: what a group reads again, or skips; in PostgreSQL first, and then in Kafka."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from outbox.drivers.psycopg_sync import run
from outbox.inbox import membership
from outbox.inbox.core.partitions import StoredOffset
from outbox_relay.operations import consumers
from tests.support.inbox_stage import InboxStage
from tests.support.logins import Logins
from tests.support.outbox_command import Ran, outbox
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until


def _reset(inbox: InboxStage, topic: str, *options: str, dsn: str = "") -> Ran:
    return outbox(
        *("consumers", "reset", inbox.group, topic, *options),
        *("--dsn", dsn or inbox.dsn, "--bootstrap-servers", inbox.bootstrap_servers),
    )


def _positions(inbox: InboxStage) -> list[Any]:
    return inbox.conn.execute(
        "SELECT part, next_off, generation FROM outbox.inbox_position ORDER BY part"
    ).fetchall()


@pytest.fixture
def stopped(inbox: InboxStage, topic: str) -> InboxStage:
    """A group that has handled two messages in each of four partitions, and does not run."""
    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic):
        inbox.wait_applied(8)
    assert _positions(inbox) == [(part, 2, 0) for part in range(4)]
    return inbox


def test_a_group_that_is_set_back_applies_nothing_twice(stopped: InboxStage, topic: str) -> None:
    forgotten = (
        "DELETE FROM outbox.inbox WHERE message_id = (SELECT message_id FROM applied WHERE body = '5')"
    )
    assert stopped.conn.execute(forgotten).rowcount == 1
    ran = _reset(stopped, topic, "--to", "first", "--yes", "--json")
    assert ran.json["partitions"] == [{"partition": part, "from": 2, "to": 0} for part in range(4)]
    assert _positions(stopped) == [(part, 0, 1) for part in range(4)]
    assert [stopped.committed(topic, part) for part in range(4)] == [0, 0, 0, 0]
    [(group, topic_id)] = stopped.conn.execute(
        "SELECT DISTINCT group_id, topic_id FROM outbox.inbox_position"
    ).fetchall()
    with psycopg.connect(stopped.dsn) as zombie:
        run(zombie, membership.store(group, [StoredOffset(topic, 0, topic_id, 2, 0, 0)]))
        zombie.commit()
    assert _positions(stopped)[0] == (0, 0, 1), "a member of before the reset cannot undo it"
    with stopped.consumer(topic):
        wait_until(lambda: [row[1] for row in _positions(stopped)] == [2, 2, 2, 2], "all of it is read again")
    assert sorted(stopped.applied("body")) == ["0", "1", "2", "3", "4", "5", "5", "6", "7"]


def test_a_group_that_is_set_forward_skips_what_lies_between(
    stopped: InboxStage, topic: str, logins: Logins
) -> None:
    stopped.produce_numbered(topic, 4, keys=4, start=8)
    ran = _reset(stopped, topic, "--to", "last", "--yes", dsn=logins.make("outbox_operator"))
    assert (ran.code, "skipped" in ran.out) == (0, True), ran.err
    with stopped.consumer(topic):
        stopped.produce_numbered(topic, 4, keys=4, start=12)
        stopped.wait_applied(12)
    assert sorted(map(int, stopped.applied("body"))) == [*range(8), *range(12, 16)]


def test_a_reset_forward_that_ends_before_kafka_skips_nothing_until_repeated(
    stopped: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule: PostgreSQL's transaction is committed, then Kafka refuses; a member runs; the command again."""
    stopped.produce_numbered(topic, 4, keys=4, start=8)

    def refuse(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with monkeypatch.context() as patched:
        patched.setattr(AdminClient, "alter_consumer_group_offsets", refuse)
        ran = _reset(stopped, topic, "--to", "last", "--yes")
    assert (ran.code, "give the command again" in ran.err) == (1, True), ran.err
    assert [row[1:] for row in _positions(stopped)] == [(3, 1)] * 4
    with stopped.consumer(topic):
        stopped.wait_applied(12)
    stopped.produce_numbered(topic, 4, keys=4, start=12)
    with monkeypatch.context() as patched:
        patched.setattr(AdminClient, "alter_consumer_group_offsets", refuse)
        assert _reset(stopped, topic, "--to", "last", "--yes").code == 1
    assert _reset(stopped, topic, "--to", "last", "--yes").code == 0
    assert [stopped.committed(topic, part) for part in range(4)] == [4, 4, 4, 4]


def test_a_reset_back_that_ends_before_kafka_holds(
    stopped: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    monkeypatch.setattr(AdminClient, "alter_consumer_group_offsets", refuse)
    ran = _reset(stopped, topic, "--to", "first", "--yes")
    assert (ran.code, "begins at the new positions all the same" in ran.err) == (1, True), ran.err
    stopped.conn.execute("DELETE FROM outbox.inbox")
    with stopped.consumer(topic):
        stopped.wait_applied(16)


def test_a_group_that_runs_is_not_reset(inbox: InboxStage, topic: str) -> None:
    inbox.produce_numbered(topic, 8, keys=4)
    with inbox.consumer(topic):
        inbox.wait_applied(8)
        wait_until(lambda: sum(row[1] for row in _positions(inbox)) == 8, "positions are stored")
        members = [
            row[0] for row in inbox.conn.execute("SELECT member FROM outbox.consumer_member").fetchall()
        ]
        ran = _reset(inbox, topic, "--to", "first", "--yes")
        assert (ran.code, f"were seen within a minute: {members[0]}" in ran.err) == (1, True), ran.err
        with psycopg.connect(inbox.dsn) as other:  # the member cannot register again meanwhile
            other.execute("SELECT FROM outbox.consumer_group FOR UPDATE")
            inbox.conn.execute("DELETE FROM outbox.consumer_member")
            ran = _reset(inbox, topic, "--to", "first", "--yes")
        assert (ran.code, f"Kafka has members of group {inbox.group!r}" in ran.err) == (1, True), ran.err
        assert _positions(inbox) == [(part, 2, 0) for part in range(4)]


@pytest.mark.parametrize("reply", [False, True], ids=["no", "too late"])
def test_a_reset_that_is_not_confirmed_or_is_stale_changes_nothing(
    stopped: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch, reply: bool
) -> None:
    """Another operator resets the group between the list and the reply."""

    def confirm(*_: object, **__: object) -> bool:
        if reply:
            assert _reset(stopped, topic, "--to", "first", "--yes").code == 0
            return True
        raise SystemExit(1)

    monkeypatch.setattr("click.confirm", confirm)
    ran = _reset(stopped, topic, "--to", "1", "--partition", "0")
    assert ran.code == 1
    assert ("have changed since they were shown" in ran.err) == reply
    assert _positions(stopped) == [(part, 0 if reply else 2, int(reply)) for part in range(4)]


def test_a_time_is_the_first_message_that_was_published_since(
    inbox: InboxStage, make_topic: MakeTopic
) -> None:
    topic, now = make_topic(partitions=1), int(time.time() * 1000)
    for number, hours in enumerate((5, 3, 1)):
        inbox.produce(topic, "k", str(number), timestamp=now - hours * 3_600_000)
    inbox.flush()
    with inbox.consumer(topic):
        inbox.wait_applied(3)
    for to, offset in (("4h", 1), ("10m", 3), ("9h", 0)):
        assert _reset(inbox, topic, "--to", to, "--yes").code == 0
        assert _positions(inbox)[0][1] == offset


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--to", "1"], 2, "an offset is one partition's own"),
        (["--to", "3", "--partition", "1"], 2, "has offsets 0 to 2"),
        (["--to", "soon"], 2, "--to 'soon' is not a time"),
        (["--to", "first", "--partition", "4"], 2, "has partitions 0 to 3"),
    ],
)
def test_a_position_that_makes_no_sense_is_refused(
    stopped: InboxStage, topic: str, options: list[str], code: int, text: str
) -> None:
    ran = _reset(stopped, topic, *options, "--yes")
    assert (ran.code, text in ran.err) == (code, True), ran.err
    assert _positions(stopped) == [(part, 2, 0) for part in range(4)]


def test_a_group_that_kafka_forgot_is_reset_and_unknown_names_are_not(
    stopped: InboxStage, topic: str, make_topic: MakeTopic
) -> None:
    stopped.forget_offsets(stopped.group)
    assert _reset(stopped, topic, "--to", "1", "--partition", "2", "--yes").code == 0
    assert _positions(stopped)[2] == (2, 1, 1)
    assert stopped.committed(topic, 2) == 1
    ran = _reset(stopped, make_topic(), "--to", "first", "--yes")
    assert (ran.code, "has no position in topic" in ran.err) == (1, True)
    ran = _reset(stopped, f"{topic}-missing", "--to", "first", "--yes")
    assert (ran.code, "no topic" in ran.err) == (1, True), ran.err


def test_a_member_that_joins_during_a_reset_waits_for_it(
    stopped: InboxStage, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schedule: the reset has found no member, a member registers and waits, the reset commits."""
    waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    members, calls = consumers.members, list[int]()

    def register() -> None:
        with psycopg.connect(stopped.dsn) as conn:
            run(conn, membership.register(stopped.group, "late", f'{{"{topic}": "*"}}', orderly=False))

    def found(conn: psycopg.Connection[Any], group: str) -> list[dict[str, Any]]:
        calls.append(1)
        rows = members(conn, group)
        if len(calls) == 2:  # in the transaction of the reset
            joining.append(pool.submit(register))
            wait_until(lambda: stopped.conn.execute(waits).rowcount, "the member waits")
        return rows

    joining: list[Future[None]] = []
    monkeypatch.setattr(consumers, "members", found)
    with ThreadPoolExecutor(1) as pool:
        assert _reset(stopped, topic, "--to", "first", "--yes").code == 0
        joining[0].result(30)
    assert _positions(stopped) == [(part, 0, 1) for part in range(4)]


def test_a_wrong_time_is_refused_before_the_group_is_looked_up(inbox: InboxStage) -> None:
    servers = {"OUTBOX_DSN": inbox.dsn, "OUTBOX_BOOTSTRAP_SERVERS": inbox.bootstrap_servers}
    ran = outbox("consumers", "reset", "nobody", "nothing", "--to", "middle", **servers)
    assert (ran.code, "--to 'middle' is not a time" in ran.err) == (2, True), ran.err
