"""`outbox topic repartition --wait-for-group`: the topic is held until consumer groups have read it; `--abort`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

from outbox_relay.operations import held_move, topics
from outbox_relay.operations.group_positions import GroupProgress
from outbox_relay.operations.topic_errors import TopicError
from tests.support.group_reader import GroupReader
from tests.support.kafka_records import read_topic
from tests.support.moved_keys import grow, moved, wrong_of_moved
from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.plain_inserts import Connection, insert_numbered, numbered, wait_published
from tests.support.publications import value
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeTopic
from tests.support.waiting import wait_until

BEFORE, AFTER = 2, 4
QUICK = ("--timeout", "2")
HELD = "SELECT count(*) FROM outbox.topic WHERE repartition_to IS NOT NULL AND paused_at IS NOT NULL"
STATED = """
    SELECT min(topics_seen - pg_catalog.cardinality(topics_behind)) = (SELECT generation FROM outbox.topic_generation)
    FROM outbox.lease
"""
PUBLISHED = "SELECT count(*) FROM outbox.message_status WHERE status = 'PUBLISHED'"
ALL_WAIT = "SELECT count(*) FROM outbox.waiting WHERE reason = 'parked'"


class Stage:
    """A topic that is pinned to 2 of its 4 partitions, with 20 messages, a relay, and the command."""

    def __init__(self, database: str, servers: str, conn: Connection, topic: str) -> None:
        self.given = {"OUTBOX_DSN": database, "OUTBOX_BOOTSTRAP_SERVERS": servers}
        self.servers, self.conn, self.topic = servers, conn, topic
        self.sent = 0
        self._pool = ThreadPoolExecutor(2)

    def send(self, count: int = 20) -> None:
        insert_numbered(self.conn, self.topic, count, start=self.sent, keys=10)
        self.sent += count

    def run(self, *groups: str, to: int = AFTER, more: tuple[str, ...] = ()) -> Ran:
        waits = [part for group in groups for part in ("--wait-for-group", group)]
        return outbox("topic", "repartition", self.topic, "--to", str(to), *waits, *more, **self.given)

    def begin(self, *groups: str, more: tuple[str, ...] = ()) -> Future[Ran]:
        """Run the command until it holds the topic, and leave it running."""
        running = self._pool.submit(self.run, *groups, more=more)
        wait_until(lambda: running.done() or self.is_paused, "the relay has paused the topic")
        return running

    def abort(self) -> Ran:
        return outbox("topic", "repartition", "--abort", self.topic, **self.given)

    @property
    def is_held(self) -> bool:
        return bool(value(self.conn, HELD))

    @property
    def is_paused(self) -> bool:
        """Whether the relay has stated that it publishes nothing of the topic."""
        return self.is_held and bool(value(self.conn, STATED))

    @property
    def count(self) -> int:
        return int(value(self.conn, "SELECT partitions FROM outbox.topic"))

    def wrong(self, after: int = AFTER) -> str:
        return wrong_of_moved(
            read_topic(self.servers, self.topic), numbered(self.sent, keys=10), BEFORE, after
        )

    def settle(self) -> None:
        """Wait until all is published, what waited for the topic as well."""
        wait_until(lambda: value(self.conn, PUBLISHED) == self.sent, "all is published")

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def stage(database: str, conn: Connection, bootstrap_servers: str, make_topic: MakeTopic) -> Iterator[Stage]:
    topic = make_topic(BEFORE, message_timestamp_type="LogAppendTime")
    made = Stage(database, bootstrap_servers, conn, topic)
    succeed("topic", "register", topic, **made.given)
    grow(bootstrap_servers, topic, AFTER)
    with RelayThread(database, bootstrap_servers, lease=1.5) as relay:
        made.send()
        wait_published(conn)
        yield made
        made.close()
    assert relay.error is None


def test_a_topic_is_held_until_all_groups_have_read_it_and_goes_over_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated: list[str] = []
    text = GroupProgress.text

    def state(progress: GroupProgress) -> str:
        stated.append(text(progress))
        return stated[-1]

    monkeypatch.setattr(GroupProgress, "text", state)
    with GroupReader(stage.servers, stage.topic) as fast, GroupReader(stage.servers, stage.topic) as slow:
        fast.read_up_to(20)
        slow.commit({0: 1, 1: 1})
        shown = stage.run(fast.group, slow.group, more=("--dry-run",))
        assert f"group {slow.group} has 18 offsets to read in partitions 0, 1" in shown.out
        assert not stage.is_held
        stated.clear()
        running = stage.begin(fast.group, slow.group)
        stage.send()
        wait_until(lambda: stated, "it has asked where the groups are")
        wait_until(lambda: value(stage.conn, ALL_WAIT) == 20, "its messages wait")
        slow.commit({0: 2, 1: 1})
        assert outbox("topic", "repartition", stage.topic, "--to", "4", **stage.given).code == 1
        assert not running.done()
        assert len(read_topic(stage.servers, stage.topic)) == 20
        slow.read_up_to(20)
        ran = running.result(60)
        assert ran.code == 0, ran.err
        told = [line for line in ran.err.splitlines() if slow.group in line]
        assert told[-1] == f"group {slow.group} has read all of it", ran.err
        assert told[0].endswith("offsets to read in partitions 0, 1"), ran.err
        assert f"the registry has {AFTER} partitions for {stage.topic} now, {BEFORE} before" in ran.err
    stage.settle()
    assert stage.count == AFTER
    assert not stage.is_held
    assert moved(read_topic(stage.servers, stage.topic), BEFORE)
    assert stage.wrong() == ""


def test_a_move_that_is_aborted_goes_on_with_the_old_count(stage: Stage) -> None:
    with GroupReader(stage.servers, stage.topic) as reader:
        reader.commit({0: 1, 1: 1})
        running = stage.begin(reader.group)
        stage.send()
        ran = stage.abort()
        assert ran.code == 0, ran.err
        assert f"goes on with {BEFORE} partitions; it does not go over to {AFTER}" in ran.out
        ended = running.result(60)
        assert (ended.code, "its move was aborted" in ended.err) == (1, True), ended.err
        stage.settle()
    assert stage.count == BEFORE
    assert stage.wrong(BEFORE) == ""
    assert "there is nothing to abort" in stage.abort().err
    assert stage.run().code == 0
    ran = stage.abort()
    assert (ran.code, "there is nothing to abort" in ran.err) == (1, True)
    assert stage.count == AFTER, "a move that has switched is not undone"


def test_a_move_whose_command_was_killed_is_shown_and_goes_on(
    stage: Stage,
) -> None:
    with GroupReader(stage.servers, stage.topic) as reader:
        reader.commit({0: 1, 1: 1})
        command = ["topic", "repartition", stage.topic, "--to", str(AFTER), "--wait-for-group", reader.group]
        dsn, servers = stage.given.values()
        with subprocess.Popen(
            [sys.executable, "-m", "outbox_relay", *command, "--dsn", dsn, "--bootstrap-servers", servers],
            stderr=subprocess.DEVNULL,
        ) as process:
            wait_until(lambda: stage.is_paused, "the relay has paused the topic")
            process.kill()
        assert process.returncode == -signal.SIGKILL
        stage.send()
        shown = succeed("topic", "show", stage.topic, **stage.given).out
        assert f"when consumer groups have read it: {reader.group}" in shown
        assert f"outbox topic repartition {stage.topic} --abort" in shown
        found = succeed("topic", "show", stage.topic, "--json", **stage.given).json
        assert (found["repartition_to"], found["repartition_groups"]) == (AFTER, [reader.group])
        refused = {
            "another group": stage.run(reader.group, "another", more=QUICK),
            "no group": stage.run(more=QUICK),
            "another count": stage.run(reader.group, to=3, more=QUICK),
            "alter": outbox(
                *("topic", "alter", stage.topic, "--partitions", "3", "--move-keys"), **stage.given
            ),
            "resume": outbox("topic", "resume", stage.topic, **stage.given),
        }
        for name, ran in refused.items():
            assert ran.code == 1, name
            assert f"outbox topic repartition {stage.topic} --abort" in ran.err, ran.err
            assert "have not read it" not in ran.err, f"{name}: it is refused, and not waited for"
        go_on = f"outbox topic repartition {stage.topic} --to {AFTER} --wait-for-group {reader.group}"
        assert go_on in refused["no group"].err
        late = stage.run(reader.group, more=QUICK)
        assert (late.code, "have not read it in time" in late.err, go_on in late.err) == (1, True, True)
        reader.read_up_to(20)
        ran = stage.run(reader.group, more=("--json",))
        assert ran.code == 0, ran.err
        assert (ran.json["changed"], ran.json["groups"]) == (True, [reader.group])
        assert stage.run(reader.group, more=("--json",)).json["changed"] is False
    stage.settle()
    assert stage.wrong() == ""


def test_what_would_hold_the_topic_for_ever_is_refused_before_it_is_held(stage: Stage) -> None:
    before = value(stage.conn, "SELECT generation FROM outbox.topic_generation")
    with GroupReader(stage.servers, stage.topic) as reader:
        unread = stage.run(reader.group)
        assert f"--wait-for-group {reader.group}: this group has committed no offset" in unread.err
        unknown = stage.run(reader.group + "x")
        assert (
            f"no such consumer group, or does not let this user see it. Did you mean '{reader.group}'"
            in unknown.err
        )
        reader.commit({0: 1, 1: 1})
    wait_until(lambda: "has no member" in stage.run(reader.group).err, "the member has left")
    alone = stage.run(reader.group)
    assert "it has no member: start one; nothing was held" in alone.err, alone.err
    assert [unread.code, unknown.code, alone.code] == [1, 1, 1]
    assert not stage.is_held
    assert value(stage.conn, "SELECT generation FROM outbox.topic_generation") == before
    for arguments in (
        ("--wait-for-group", reader.group),
        ("--abort", "--to", "4"),
        ("--to", "4", "--wait-for-group", " "),
    ):
        assert outbox("topic", "repartition", stage.topic, *arguments, **stage.given).code == 2
    succeed("topic", "pause", stage.topic, "--reason", "ours", **stage.given)
    paused = stage.run(reader.group)
    assert (paused.code, f"outbox topic resume {stage.topic}" in paused.err) == (1, True)


def test_of_an_abort_and_a_switch_the_first_one_holds(
    database: str, conn: Connection, make_topic: MakeTopic
) -> None:
    """Each meets the row that the other one has locked and changed; and a move of before an abort ends no later one."""
    name = make_topic(BEFORE)
    conn.execute("INSERT INTO outbox.topic (name, partitions) VALUES (%s, %s)", [name, BEFORE])

    def hold() -> topics.Registered:
        return held_move.hold(conn, topics.get(conn, name), AFTER, ["a"])

    waiting = """
        SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
        WHERE NOT granted AND datname = current_database()
    """

    def while_locked(first: str, second: str) -> BaseException | None:
        held = hold()
        ways: dict[str, Callable[[Connection], object]] = {
            "switch": lambda c: held_move.switch(c, held),
            "abort": lambda c: held_move.abort(c, name),
        }
        with ThreadPoolExecutor(1) as pool, psycopg.connect(database, autocommit=True) as other:
            with psycopg.connect(database) as one:
                ways[first](one)
                running = pool.submit(ways[second], other)
                wait_until(lambda: value(conn, waiting) == 1, "the second one waits for the row")
            return running.exception(30)

    aborted = while_locked("abort", "switch")
    assert isinstance(aborted, TopicError)
    assert "its move was aborted" in str(aborted)
    assert topics.get(conn, name).partitions == BEFORE
    first, _, second = hold(), held_move.abort(conn, name), hold()
    with pytest.raises(TopicError, match="its move was aborted"):
        held_move.switch(conn, first)
    assert held_move.switch(conn, second)
    assert not held_move.switch(conn, second), "another operator's command finds it done"
    conn.execute("UPDATE outbox.topic SET partitions = %s", [BEFORE])
    switched = while_locked("switch", "abort")
    assert isinstance(switched, TopicError)
    assert f"has gone over to {AFTER} partitions just now" in str(switched)
    assert topics.get(conn, name).partitions == AFTER
