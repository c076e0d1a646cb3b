"""`outbox consumers replay`: old messages for one group, in order, once each, whoever dies in between."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from outbox import Message, Outbox
from outbox.inbox import ConsumedMessage, ConsumeResult, PushConsumer
from outbox_relay.operations import replay_plan, replays
from outbox_relay.operations.replay_file import ExportedMessages
from outbox_relay.operations.replay_source import History, Selection
from outbox_relay.text.errors import OperatorError
from tests.support.inbox_stage import Connection, InboxStage, apply
from tests.support.logins import Logins
from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.relay_in_process import publish
from tests.support.servers import MakeDatabase
from tests.support.waiting import wait_until

KEYS, COUNT = 3, 30


def send(dsn: str, topic: str, count: int = COUNT, *, start: int = 0, **fields: Any) -> None:
    """Send numbered messages over three keys, in one transaction."""
    with psycopg.connect(dsn) as conn:
        for number in range(start, start + count):
            key = f"k{number % KEYS}"
            Outbox().send(conn, Message(topic, key=key.encode(), body=str(number).encode(), **fields))


@pytest.fixture
def read(inbox: InboxStage, topic: str) -> InboxStage:
    """An orderly group that does not run, and has read 30 messages that a relay has published."""
    send(inbox.dsn, topic)
    publish(inbox.dsn, inbox.bootstrap_servers, COUNT)
    with inbox.consumer(topic, orderly=True):
        inbox.wait_applied(COUNT)
    return inbox


def forget(inbox: InboxStage, where: str = "true") -> int:
    """Let the group have skipped messages: neither their effects nor their rows of the inbox exist."""
    chosen = f"message_id IN (SELECT message_id FROM applied WHERE {where})"
    inbox.conn.execute(f"DELETE FROM outbox.inbox WHERE {chosen}")
    return inbox.conn.execute(f"DELETE FROM applied WHERE {where}").rowcount


def replay(inbox: InboxStage, *options: str) -> Ran:
    return outbox("consumers", "replay", inbox.group, "--yes", "--json", "--dsn", inbox.dsn, *options)


def in_order(inbox: InboxStage) -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, COUNT, KEYS)) for key in range(KEYS)}


def replayed(inbox: InboxStage) -> int:
    return inbox.count("outbox.inbox_parked", "replay IS NOT NULL")


def test_what_a_group_has_skipped_is_applied_in_order_and_once(read: InboxStage, topic: str) -> None:
    everything = ("--topic", topic, "--from", "1h")
    assert replay(read, *everything).json["messages"] | {"applied": 0} == dict.fromkeys(
        replay_plan.MEANINGS, 0
    )
    assert forget(read) == COUNT
    other = InboxStage(read.dsn, read.bootstrap_servers)
    ends = [read.end_of(topic, part) for part in range(4)]
    dry = replay(read, *everything, "--dry-run").json
    assert (dry["messages"]["apply"], dry["parked"], replayed(read)) == (COUNT, 0, 0)
    assert replay(read, *everything).json["parked"] == COUNT
    assert replay(read, *everything).json["messages"]["parked"] == COUNT
    with read.consumer(topic, orderly=True):
        read.wait_applied(COUNT)
        wait_until(lambda: not replayed(read), "all are applied")
    assert read.by_key() == in_order(read)
    assert (read.count("outbox.inbox_held_key"), read.count("outbox.inbox")) == (0, COUNT)
    assert [read.end_of(topic, part) for part in range(4)] == ends, "nothing was published"
    other.close()


def test_a_replayed_message_is_the_one_that_kafka_has_delivered(read: InboxStage, topic: str) -> None:
    """Body, key, headers, times and place: a listener cannot find a difference."""
    seen: list[ConsumedMessage] = []

    def note(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        seen.append(message)
        return apply(conn, message)

    send(read.dsn, topic, 1, start=COUNT, tags=["paid", "new"], index_keys=["a", "b"], headers={"h": "ü"})
    publish(read.dsn, read.bootstrap_servers, 1)
    with read.consumer(topic, note, orderly=True):
        wait_until(lambda: len(seen) == 1, "it is delivered")
        id_, passed = str(seen[0].message_id), "(SELECT sum(next_off) FROM outbox.inbox_position) = 31"
        wait_until(lambda: read.count("outbox.inbox_position", passed), "its position is stored")
        assert replay(read, "--topic", topic, "--id", id_, "--again").json["messages"]["apply_again"] == 1
        wait_until(lambda: len(seen) == 2, "it is delivered again")
    first, second = seen
    assert second.message_id == first.message_id
    compared = (
        "topic",
        "partition",
        "offset",
        "key",
        "body",
        "headers",
        "tags",
        "keys",
        "born_at",
        "reconsume_times",
    )
    assert [getattr(second, name) for name in compared] == [getattr(first, name) for name in compared]


def test_a_key_is_applied_again_before_its_newer_messages(read: InboxStage, topic: str) -> None:
    """While the replayed messages are parked, live ones of the key wait behind them, and others do not."""
    gate = threading.Event()

    def wait(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"0":
            gate.wait(30)
        return apply(conn, message)

    with read.consumer(topic, wait, orderly=True):
        assert replay(read, "--topic", topic, "--key", "k0", "--again").json["parked"] == 10
        send(read.dsn, topic, KEYS, start=COUNT)
        publish(read.dsn, read.bootstrap_servers, KEYS)
        read.wait_applied(COUNT + KEYS - 1)
        wait_until(lambda: read.count("outbox.inbox_parked") == 11, "the newer message of the key waits")
        gate.set()
        read.wait_applied(COUNT + KEYS + 10)
    assert read.by_key()["k0"] == [*range(0, COUNT, KEYS), *range(0, COUNT, KEYS), COUNT]


def test_what_the_group_has_not_read_yet_is_left_to_kafka(read: InboxStage, topic: str) -> None:
    send(read.dsn, topic, KEYS, start=COUNT)
    publish(read.dsn, read.bootstrap_servers, KEYS)
    counts = replay(read, "--topic", topic, "--from", "1h", "--again").json["messages"]
    assert (counts["apply_again"], counts["to_come"]) == (COUNT, KEYS)


def test_what_the_group_does_not_subscribe_to_is_left_out(read: InboxStage, topic: str) -> None:
    with read.consumer({topic: "paid"}, orderly=True) as consumer:
        assert isinstance(consumer, PushConsumer)
    forget(read)
    counts = replay(read, "--topic", topic, "--from", "1h").json["messages"]
    assert (counts["apply"], counts["not_subscribed"]) == (0, COUNT)


def test_replayed_messages_wait_behind_one_that_failed(read: InboxStage, topic: str) -> None:
    """A dead letter of the key stays in front; redriven, it is applied before them."""
    forget(read, "body IN ('3', '6')")
    listener_fails = threading.Event()
    listener_fails.set()

    def fail(conn: Connection, message: ConsumedMessage) -> ConsumeResult:
        if message.body == b"30" and listener_fails.is_set():
            raise ValueError("not yet")
        return apply(conn, message)

    with read.consumer(topic, fail, orderly=True):
        send(read.dsn, topic, 1, start=COUNT)
        publish(read.dsn, read.bootstrap_servers, 1)
        wait_until(lambda: read.count("outbox.inbox_parked", "state = 'dead'") == 1, "it is dead")
        ran = outbox(
            *("consumers", "replay", read.group, "--yes", "--dsn", read.dsn, "--topic", topic, "--key", "k0")
        )
        assert "1 key of them are held by a message that failed" in ran.out
        assert replayed(read) == 2
        listener_fails.clear()
        succeed("dlq", "redrive", "--all", "--dsn", read.dsn)
        wait_until(lambda: not read.count("outbox.inbox_parked"), "all are applied")
    assert read.by_key()["k0"][-3:] == [30, 3, 6]


def test_what_is_too_old_to_be_proven_new_is_left_out_unless_again(read: InboxStage, topic: str) -> None:
    forget(read)
    read.conn.execute(
        "INSERT INTO outbox.inbox_floor (group_id, born_before) SELECT id, current_date + 1 FROM outbox.consumer_group"
    )
    assert replay(read, "--topic", topic, "--from", "1h", "--dry-run").json["messages"]["too_old"] == COUNT
    assert replay(read, "--topic", topic, "--from", "1h", "--again").json["parked"] == COUNT


def test_messages_of_another_database_are_replayed(
    inbox: InboxStage, topic: str, make_database: MakeDatabase
) -> None:
    """The producer's database is not the consumer's; the replay goes on with the same one only."""
    source = make_database()
    send(source, topic)
    publish(source, inbox.bootstrap_servers, COUNT)
    with inbox.consumer(topic):
        inbox.wait_applied(COUNT)
    forget(inbox, "body::integer < 10")
    assert replay(inbox, "--topic", topic, "--from", "1h").json["messages"]["apply"] == 0
    assert replay(inbox, "--topic", topic, "--from", "1h", "--source", source).json["parked"] == 10
    with inbox.consumer(topic):
        inbox.wait_applied(COUNT)
    assert sorted(map(int, inbox.applied("body"))) == list(range(COUNT))


def begun(inbox: InboxStage, topic: str) -> tuple[History, replays.Replay, list[Any]]:
    """A replay of everything that has parked nothing yet."""
    source, selection = History(inbox.conn), Selection(topic, since=datetime(2026, 1, 1, tzinfo=UTC))
    target, origin = replay_plan.target(inbox.conn, inbox.group, topic), source.origin()
    chosen = source.choose(selection, origin.now)
    return source, replays.begin(inbox.conn, target, selection, origin, again=True), chosen


def test_a_process_that_dies_between_parking_and_promoting_leaves_it_to_the_next(
    read: InboxStage, topic: str
) -> None:
    source, replay_, chosen = begun(read, topic)
    with pytest.raises(OperatorError, match="is not finished"):
        begun(read, topic)
    [first, *_] = replay_.target.batches(chosen, 1)
    assert len(first) == COUNT // KEYS, "a key is not divided"
    replays.Replaying(read.conn, source, replay_).park(first)
    assert read.count("outbox.inbox_parked", "state = 'waiting'") == COUNT // KEYS
    assert replay(read, "--resume").json["parked"] == COUNT
    stale = replays.Replaying(read.conn, source, replay_)
    with pytest.raises(OperatorError, match="another process goes on"):
        stale.run(chosen)
    with read.consumer(topic, orderly=True):
        read.wait_applied(2 * COUNT)
        wait_until(lambda: not replayed(read), "all are applied")
    assert read.by_key() == {key: numbers * 2 for key, numbers in in_order(read).items()}


def test_a_listener_that_found_its_key_free_is_waited_for(read: InboxStage, topic: str) -> None:
    """It runs in a transaction of before; the first replayed message of the key may not run beside it."""
    source, replay_, chosen = begun(read, topic)
    running = replays.Replaying(read.conn, source, replay_)
    keys = running.park(chosen)
    with psycopg.connect(read.dsn) as listener:
        listener.execute("INSERT INTO outbox.inbox SELECT * FROM outbox.inbox LIMIT 0")
        promoting = threading.Thread(target=running.promote, args=(keys,))
        promoting.start()
        promoting.join(0.5)
        assert promoting.is_alive()
        with psycopg.connect(read.dsn, autocommit=True) as reader:
            counted = reader.execute(
                "SELECT count(*) FROM outbox.inbox_parked WHERE state = 'retry'"
            ).fetchone()
        assert counted == (0,)
        listener.rollback()
    promoting.join(30)
    assert read.count("outbox.inbox_parked", "state = 'retry'") == KEYS


def test_a_replay_that_is_killed_goes_on_and_gives_no_message_twice(read: InboxStage, topic: str) -> None:
    arguments = ("consumers", "replay", read.group, "--topic", topic, "--from", "1h", "--again", "--yes")
    command = [sys.executable, "-m", "outbox_relay.cli.main", *arguments, "--dsn", read.dsn, "--rate", "2"]
    with read.consumer(topic, orderly=True):
        with subprocess.Popen(
            command, env={**os.environ, "PGOPTIONS": ""}, stdout=subprocess.DEVNULL
        ) as process:
            wait_until(
                lambda: read.count("outbox.inbox_replay", "parked BETWEEN 10 AND 20") == 1, "a part is parked"
            )
            read.wait_applied(COUNT + 10)
            process.send_signal(signal.SIGKILL)
        assert read.count("outbox.inbox_replay", "finished_at IS NULL") == 1
        assert "--resume" in replay(read, "--topic", topic, "--from", "1h", "--again").err
        assert replay(read, "--resume").json["parked"] == COUNT
        read.wait_applied(2 * COUNT)
        wait_until(lambda: not replayed(read), "all are applied")
    assert read.by_key() == {key: numbers * 2 for key, numbers in in_order(read).items()}


def test_a_replay_that_is_cancelled_lets_run_what_it_has_parked(read: InboxStage, topic: str) -> None:
    source, replay_, chosen = begun(read, topic)
    replays.Replaying(read.conn, source, replay_).park(next(replay_.target.batches(chosen, 1)))
    assert replay(read, "--cancel").json == {"parked": COUNT // KEYS}
    assert "no replay" in replay(read, "--resume").err
    with read.consumer(topic, orderly=True):
        read.wait_applied(COUNT + COUNT // KEYS)


EXPORT = """
    SELECT json_build_object('position', position, 'message_id', m.message_id, 'topic', m.topic, 'partition', partition,
        'offset', "offset", 'born_ms', (date_part('epoch', born_at) * 1000)::bigint,
        'published_ms', (date_part('epoch', published_at) * 1000)::bigint, 'key', encode(m.key, 'base64'),
        'body', encode(h.body, 'base64'), 'headers', h.headers, 'tags', tags, 'index_keys', index_keys)::text
    FROM outbox.message_status m JOIN outbox.message h USING (id, born_at, tags, index_keys, position)
"""
"""The lines that docs/how-to/replay.md has a query of the warehouse write."""


def test_messages_of_a_file_are_replayed(read: InboxStage, topic: str, tmp_path: Path) -> None:
    """The history may be gone from PostgreSQL; a replay goes on with the same file only."""
    lines = [line for (line,) in read.conn.execute(EXPORT).fetchall()]
    file, other = tmp_path / "messages.jsonl", tmp_path / "other.jsonl"
    file.write_text("\n".join(lines) + "\n")
    other.write_text("\n".join(lines[1:]))
    forget(read)
    read.conn.execute("TRUNCATE outbox.message, outbox.publication")
    target, source = replay_plan.target(read.conn, read.group, topic), ExportedMessages(file)
    selection, origin = Selection(topic, since=datetime(2026, 1, 1, tzinfo=UTC)), source.origin()
    chosen = source.choose(selection, origin.now)
    interrupted = replays.begin(read.conn, target, selection, origin, again=False)
    replays.Replaying(read.conn, source, interrupted).park(next(target.batches(chosen, 1)))
    assert "SHA-256" in replay(read, "--resume", "--file", str(other)).err
    assert replay(read, "--resume", "--file", str(file)).json["parked"] == COUNT
    with read.consumer(topic, orderly=True):
        read.wait_applied(COUNT)
    assert read.by_key() == in_order(read)


@pytest.mark.parametrize("line", ["no json", "{}", "[]", '{"position": "x"}'])
def test_a_line_that_is_no_message_is_named(read: InboxStage, topic: str, tmp_path: Path, line: str) -> None:
    file = tmp_path / "messages.jsonl"
    file.write_text(f"\n{line}\n")
    assert "line 2" in replay(read, "--topic", topic, "--from", "1h", "--file", str(file)).err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--from", "1h"), "--topic"),
        (("--topic", "t"), "--key, --from (with --to), or --id"),
        (("--topic", "t", "--from", "1h", "--to", "2h"), "is not before"),
        (("--topic", "t", "--from", "then"), "is not a time"),
        (("--topic", "t", "--id", "x"), "does not name a message"),
        (("--topic", "other", "--key", "k"), "there is no topic"),
        (("--resume", "--again"), "leave the other options out"),
        (("--resume",), "unfinished"),
    ],
)
def test_a_replay_that_makes_no_sense_is_refused(
    read: InboxStage, options: tuple[str, ...], expected: str
) -> None:
    ran = replay(read, *options)
    assert ran.code in (1, 2)
    assert expected in ran.err
    assert not read.count("outbox.inbox_replay")


def test_a_replay_needs_the_consumers_role_and_one_that_reads_bodies(
    read: InboxStage, topic: str, logins: Logins
) -> None:
    forget(read)
    consumer, etl = logins.make("outbox_consumer"), logins.make("outbox_etl")
    options = ("--topic", topic, "--from", "1h", "--yes")
    refused = outbox("consumers", "replay", read.group, *options, "--dsn", consumer)
    assert (refused.code, "permission denied" in refused.err) == (1, True)
    given = succeed("consumers", "replay", read.group, *options, "--dsn", consumer, "--source", etl)
    assert f"{COUNT} messages were given to the group" in given.out
