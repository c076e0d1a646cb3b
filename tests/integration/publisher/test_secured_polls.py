"""Polls that find what needs no barrier: all that their snapshots see is flushed, no standby waits, the lanes are ours.

On servers of this process, where nobody else writes, and the process that flushes in the background can be stopped: so
it is known what is flushed. Schedules, between the poll and what it finds being handed to Kafka:

- PostgreSQL dies: what was published is there when it is back, because it was flushed before the poll ended.
- The relay is paused for longer than its lease: its check of ownership is as old as the poll, so a barrier is made.
- The lanes are taken before the poll: it finds another owner there, and nothing is published.
- The rows wait, because Kafka does not reply about a topic: the poll's answer does not count in a later turn.
- A topic has to be read: what was read of it may be younger than what was flushed, so a barrier is made.
- The log ends at the end of a segment, or others have written and not committed: the poll waits for none of that, and a
  barrier is made at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from outbox_local.stack.api import Stack
from outbox_relay.publisher import loop
from outbox_relay.publisher.core import Core
from outbox_relay.publisher.core.values import Page
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.finder import Finder, Slice, prepare_session
from outbox_relay.publisher.hands import reads
from outbox_relay.publisher.hands.topic_watch import Found, TopicWatch
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.background_flushes import no_background_flushes
from tests.support.kafka_records import read_topic
from tests.support.lanes import take
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session, turn_until
from tests.support.servers import MakeTopic
from tests.support.settled_relay import POLL, POLL_AND_BARRIER, SettledRelay, watched_relay
from tests.support.waiting import wait_until

NEXT_XID = "SELECT pg_catalog.pg_current_xact_id()::text::bigint"
INSERTED = "SELECT pg_catalog.pg_current_wal_insert_lsn()"
FLUSHED = "SELECT pg_catalog.pg_current_wal_flush_lsn() >= pg_catalog.pg_current_wal_insert_lsn()"
ALL = Slice(frozenset(range(8)))


@pytest.fixture
def conn(private_database: str) -> Iterator[Connection]:
    with connect(private_database) as conn:
        yield conn


@pytest.fixture
def relay(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> Iterator[SettledRelay]:
    with watched_relay(private_stack, private_database, private_topic, conn) as relay:
        yield relay


def flush(conn: Connection) -> None:
    """Make a flushed commit."""
    conn.execute("SELECT pg_logical_emit_message(true, 'test', '')")


def take_lanes(conn: Connection, condition: str = "true") -> None:
    """Let another relay have lanes."""
    conn.execute(f"UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another' WHERE {condition}".encode())


def test_what_is_flushed_is_published_without_a_barrier(relay: SettledRelay, conn: Connection) -> None:
    relay.send(1)
    before = value(conn, INSERTED)
    assert relay.turn() == POLL
    assert relay.sent == 1
    assert value(conn, INSERTED) == before, "nothing was written before"


def test_what_is_not_flushed_waits_for_a_barrier(relay: SettledRelay, conn: Connection) -> None:
    conn.execute("SET synchronous_commit = off")
    relay.send(1)
    assert not value(conn, FLUSHED)
    assert relay.turn() == POLL_AND_BARRIER
    assert relay.sent == 1
    relay.acknowledge()
    turn_until(relay.session, lambda: relay.is_settled, "it is recorded")
    relay.send(1)
    conn.execute("SET synchronous_commit = on")
    flush(conn)
    assert relay.turn() == POLL, "a stranger's commit has flushed it"
    assert relay.sent == 1


def test_what_others_write_and_do_not_commit_holds_up_nothing(
    relay: SettledRelay, conn: Connection, private_database: str
) -> None:
    with connect(private_database) as other, other.transaction():
        relay.send(1)
        other.execute("CREATE TABLE half_a_page (a text)")
        assert not value(conn, FLUSHED)
        assert relay.turn() == POLL_AND_BARRIER
        assert relay.sent == 1


def test_a_log_that_ends_with_its_segment_holds_up_nothing(relay: SettledRelay, conn: Connection) -> None:
    relay.send(1)
    conn.execute("SELECT pg_catalog.pg_switch_wal()")
    assert not value(conn, FLUSHED), "the next record would begin behind the header of the next segment"
    assert relay.turn() == POLL_AND_BARRIER
    assert relay.sent == 1


def test_nothing_is_published_when_the_poll_finds_another_owner(
    relay: SettledRelay, conn: Connection
) -> None:
    relay.send(1)
    take_lanes(conn)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_one_lost_lane_is_enough_for_a_barrier(
    relay: SettledRelay, conn: Connection, private_topic: str
) -> None:
    """Also for messages of lanes that are still ours: the session ends as a whole."""
    (key,) = keys_of_lanes(conn, private_topic, 1)
    take_lanes(conn, "lane = 5")
    insert(conn, private_topic, key, "1")
    assert value(conn, FLUSHED)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_a_topic_that_is_read_after_the_poll_waits_for_a_barrier(
    relay: SettledRelay, conn: Connection, make_private_topic: MakeTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read of the registry may be younger than what the poll found flushed."""
    learn = TopicWatch.learn

    def meanwhile(watch: TopicWatch, names: Iterable[str]) -> Found:
        found = learn(watch, names)
        assert found
        take_lanes(conn)
        return found

    monkeypatch.setattr(TopicWatch, "learn", meanwhile)
    insert(conn, make_private_topic(), "k", "1")
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_a_relay_that_was_paused_behind_the_poll_asks_for_its_lanes_again(
    relay: SettledRelay, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [time.monotonic()]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(reads, "time", clock)
    poll = Finder.poll

    def paused(*given: Any) -> Any:
        answer = poll(*given)
        assert answer.needs_no_barrier
        now[0] += 60.0
        take_lanes(conn)
        return answer

    monkeypatch.setattr(Finder, "poll", paused)
    relay.send(1)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_the_answer_of_a_poll_does_not_count_in_a_later_turn(
    relay: SettledRelay, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = TopicWatch.learn

    def away(watch: TopicWatch, names: Iterable[str]) -> Found:
        monkeypatch.setattr(TopicWatch, "learn", learn)
        raise KafkaUnavailableError("no broker replies about a topic")

    monkeypatch.setattr(TopicWatch, "learn", away)
    relay.send(1)
    with pytest.raises(KafkaUnavailableError):
        relay.turn()
    take_lanes(conn)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert relay.sent == 0


def test_pages_of_a_list_wait_for_barriers_whatever_the_poll_found(
    private_stack: Stack,
    private_database: str,
    private_topic: str,
    conn: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their rows are read by other statements, later, and some on another connection."""
    pages: list[Page] = []
    add = Core.add

    def noted(core: Core, page: Page) -> None:
        pages.append(page)
        add(core, page)

    with relay_session(private_database, private_stack.bootstrap_servers, clean=False, page=10) as session:
        relay = SettledRelay(session, conn, private_topic)
        session._renewal.stop()
        relay.send(45)
        monkeypatch.setattr(Core, "add", noted)
        turn_until(session, lambda: session.counts.recorded == 48, "all pages are published")
        lists = [page for page in pages if page.read.kind == "list"]
        assert sum(len(page.rows) for page in lists) == 45
        assert not any(page.is_flushed for page in lists)


def test_what_a_poll_found_flushed_is_there_after_a_crash_in_front_of_publishing(
    relay: SettledRelay,
    private_stack: Stack,
    private_topic: str,
    private_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learn = TopicWatch.learn

    def crash(watch: TopicWatch, names: Iterable[str]) -> Found:
        private_stack.kill_postgres()
        return learn(watch, names)

    monkeypatch.setattr(TopicWatch, "learn", crash)
    relay.send(1)
    relay.turn()
    assert relay.sent == 1
    relay.acknowledge()
    with pytest.raises(psycopg.OperationalError):
        relay.session.run_once(0)
    private_stack.start_postgres()
    published = {record.message_id for record in read_topic(private_stack.bootstrap_servers, private_topic)}
    with connect(private_database) as conn:
        kept = {row[0] for row in conn.execute("SELECT message_id::text FROM outbox.message").fetchall()}
    assert len(published) == relay.session.counts.published
    assert published == kept


MANY = 10
ENDS = {
    "an abort": ("BEGIN", NEXT_XID, "ROLLBACK") * MANY,
    "an aborted savepoint": (
        "BEGIN",
        NEXT_XID,
        *["SAVEPOINT s", "INSERT INTO temporary VALUES (1)", "ROLLBACK TO s"] * MANY,
    ),
    "a commit of an xid alone": (NEXT_XID,) * MANY,
    "a commit of a temporary table": ("INSERT INTO temporary VALUES (1)",) * MANY,
}
"""Ways in which an xid ends without a flush, whatever synchronous_commit is."""


@pytest.mark.parametrize("is_flushed", [False, True])
@pytest.mark.parametrize("end", ENDS)
def test_a_crash_issues_no_xid_again_that_a_poll_without_a_barrier_saw(
    private_stack: Stack, private_database: str, conn: Connection, end: str, is_flushed: bool
) -> None:
    lease = take(conn, "me", 300)
    with connect(private_database) as reading, closing(connect(private_database)) as other:
        prepare_session(reading)
        finder = Finder(reading, lease=lease)
        finder.name_partitions((f"message_p{1:015}",))
        before = finder.here()[0]
        with no_background_flushes(conn):
            insert(conn, "t", "k", "1")
            other.execute("CREATE TEMPORARY TABLE temporary (a integer)")
            flush(conn)
            for statement in ENDS[end]:
                other.execute(statement.encode())
            if is_flushed:
                flush(conn)
            poll = finder.poll(before, ALL)
            assert len(poll.rows) == 1
            assert poll.needs_no_barrier == is_flushed
            if not is_flushed:
                return  # it waits for a barrier; which xids a crash would issue again is left to PostgreSQL
            private_stack.kill_postgres()
    private_stack.start_postgres()
    with connect(private_database) as after:
        assert value(after, NEXT_XID) >= poll.snapshot.xmax


def test_no_poll_goes_without_a_barrier_while_standbys_are_named(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> None:
    """Nobody has that name. Who commits locally waits for no standby; the relay does, before it publishes that."""
    conn.execute("SET synchronous_commit = local")
    bootstrap_servers = private_stack.bootstrap_servers
    with RelayProcess(private_database, bootstrap_servers, "--lease", "300") as relay:
        relay.wait_until_running()
        insert(conn, private_topic, "k", "1")
        wait_until(lambda: len(read_topic(bootstrap_servers, private_topic)) == 1, "the first")
        wait_published(conn)
        try:
            name_standby(conn, "nobody")
            insert(conn, private_topic, "k", "2")
            waits = (
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'outbox relay' "
                "AND wait_event = 'SyncRep')"
            )
            wait_until(lambda: value(conn, waits), "the relay to wait for a standby")
            assert len(read_topic(bootstrap_servers, private_topic)) == 1
        finally:
            name_standby(conn, "")
        wait_until(lambda: len(read_topic(bootstrap_servers, private_topic)) == 2, "the second")
        relay.stop()


def name_standby(conn: Connection, name: str) -> None:
    conn.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{name}'".encode())
    conn.execute("SELECT pg_reload_conf()")
    wait_until(lambda: value(conn, "SHOW synchronous_standby_names") == name, "the setting to be read")
