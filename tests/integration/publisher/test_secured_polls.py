"""Polls that find what needs no barrier: all that their snapshots see is flushed, no standby waits, the lanes are ours.

On servers of this process, where nobody else writes, and the process that flushes in the background can be stopped: so
it is known what is flushed. Schedules, between the poll and what it finds being handed to Kafka:

- PostgreSQL dies: what was published is there when it is back, because it was flushed before the poll ended.
- The relay is paused for longer than its lease: its check of ownership is as old as the poll, so a barrier is made.
- The lanes are taken before the poll: it finds another owner there, and nothing is published.
- The rows wait, because Kafka does not reply about a topic: the poll's answer does not count in a later turn.
- The log ends at the end of a segment, or others have written and not committed: the poll waits for none of that, and a
  barrier is made at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from outbox_local.stack.api import Stack
from outbox_relay.publisher import barriers
from outbox_relay.publisher.errors import KafkaUnavailableError
from outbox_relay.publisher.finder import Finder, Scope, prepare_session
from outbox_relay.publisher.lane_groups import Group
from outbox_relay.publisher.lease import LeaseLostError
from tests.support.background_flushes import no_background_flushes
from tests.support.kafka_records import read_topic
from tests.support.lanes import take
from tests.support.plain_inserts import Connection, connect, insert, keys_of_lanes, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.relay_session import relay_session, turn_until
from tests.support.settled_relay import SettledRelay, on_the_wire, watched_relay
from tests.support.waiting import wait_until

NEXT_XID = "SELECT pg_current_xact_id()::text::bigint"
FLUSHED = "SELECT pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn()"
ALL = Scope(frozenset(range(8)))


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


def test_what_is_flushed_is_published_without_a_barrier(relay: SettledRelay, conn: Connection) -> None:
    with no_background_flushes(conn):
        relay.send(1)
        before = value(conn, "SELECT pg_current_wal_insert_lsn()")
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 0)
        assert value(conn, "SELECT pg_current_wal_insert_lsn()") == before, "nothing was written before"


def test_what_is_not_flushed_waits_for_a_barrier(relay: SettledRelay, conn: Connection) -> None:
    with no_background_flushes(conn):
        conn.execute("SET synchronous_commit = off")
        relay.send(1)
        assert not value(conn, FLUSHED)
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 1)
        relay.acknowledge()
        turn_until(relay.session, lambda: relay.is_settled, "it is recorded")
        relay.barriers = 0
        relay.send(1)
        conn.execute("SET synchronous_commit = on")
        flush(conn)
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 0), "a stranger's commit has flushed it"


def test_what_others_write_and_do_not_commit_holds_up_nothing(
    relay: SettledRelay, conn: Connection, private_database: str
) -> None:
    with no_background_flushes(conn), connect(private_database) as other, other.transaction():
        relay.send(1)
        other.execute("CREATE TABLE half_a_page (a text)")
        assert not value(conn, FLUSHED)
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 1)


def test_a_log_that_ends_with_its_segment_holds_up_nothing(relay: SettledRelay, conn: Connection) -> None:
    with no_background_flushes(conn):
        relay.send(1)
        conn.execute("SELECT pg_switch_wal()")
        assert not value(conn, FLUSHED), "the next record would begin behind the header of the next segment"
        relay.turn()
        assert (on_the_wire(relay), relay.barriers) == (1, 1)


def test_nothing_is_published_when_the_poll_finds_another_owner(
    relay: SettledRelay, conn: Connection
) -> None:
    relay.send(1)
    conn.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another'")
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert (on_the_wire(relay), relay.barriers) == (0, 1)


def test_one_lost_lane_is_enough_for_a_barrier(
    relay: SettledRelay, conn: Connection, private_topic: str
) -> None:
    """Also for messages of lanes that are still ours: the session ends as a whole."""
    (key,) = keys_of_lanes(conn, private_topic, 1)
    conn.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another' WHERE lane = 5")
    insert(conn, private_topic, key, "1")
    assert value(conn, FLUSHED)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert (on_the_wire(relay), relay.barriers) == (0, 1)


def test_one_page_that_needs_a_barrier_is_enough_for_one(
    relay: SettledRelay, conn: Connection, private_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a list, next to a poll that found its rows flushed."""
    session = relay.session
    (group,) = session._groups
    lanes = sorted(group.lanes)
    group.lanes = set(lanes[:3])
    session._groups.append(Group(set(lanes[3:]), group.progress))
    read = session._reader.read

    def as_of_a_list(*given: Any, **more: Any) -> Iterator[Any]:
        for number, page in enumerate(read(*given, **more)):
            assert page.has_barrier
            page.has_barrier = number == 0
            yield page

    monkeypatch.setattr(session._reader, "read", as_of_a_list)
    for key in keys_of_lanes(conn, private_topic, lanes[0], lanes[-1]):
        insert(conn, private_topic, key, "1")
    relay.turn()
    assert (on_the_wire(relay), relay.barriers) == (2, 1)


def test_a_topic_that_is_read_after_the_poll_waits_for_a_barrier(
    relay: SettledRelay, private_topic: str
) -> None:
    """What was read of the registry may be younger than what the poll found flushed."""
    relay.send(1)
    del relay.session._publisher.topics._topics[private_topic]
    relay.turn()
    assert (on_the_wire(relay), relay.barriers) == (1, 1)


def test_a_relay_that_was_paused_behind_the_poll_asks_for_its_lanes_again(
    relay: SettledRelay, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr(barriers, "time", SimpleNamespace(monotonic=lambda: now[0]))
    poll = relay.session._finder.poll

    def paused(*given: Any) -> Any:
        answer = poll(*given)
        assert answer.needs_no_barrier
        now[0] += 60.0
        conn.execute("UPDATE outbox.lane SET epoch = epoch + 1000, owner = 'another'")
        return answer

    monkeypatch.setattr(relay.session._finder, "poll", paused)
    relay.send(1)
    with pytest.raises(LeaseLostError):
        relay.turn()
    assert (on_the_wire(relay), relay.barriers) == (0, 1)


def test_the_answer_of_a_poll_does_not_count_in_a_later_turn(
    relay: SettledRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = relay.session._publisher
    prepare = publisher.prepare

    def away(*given: Any) -> None:
        monkeypatch.setattr(publisher, "prepare", prepare)
        raise KafkaUnavailableError("no broker replies about a topic")

    monkeypatch.setattr(publisher, "prepare", away)
    relay.send(1)
    with pytest.raises(KafkaUnavailableError):
        relay.turn()
    (page,) = relay.session._pages
    assert page.has_barrier
    relay.turn()
    assert (on_the_wire(relay), relay.barriers) == (1, 1)


def test_pages_of_a_list_wait_for_barriers_whatever_the_poll_found(
    private_stack: Stack, private_database: str, private_topic: str, conn: Connection
) -> None:
    """Their rows are read by other statements, later, and some on another connection."""
    with relay_session(private_database, private_stack.bootstrap_servers, clean=False, page=10) as session:
        relay = SettledRelay(session, conn, private_topic)
        session._renewal.stop()
        relay.send(45)
        pages, read = [], session._reader.read

        def noted(*given: Any, **more: Any) -> Iterator[Any]:
            for page in read(*given, **more):
                pages.append((page.has_barrier, len(page.rows)))
                yield page

        session._reader.read = noted  # type: ignore[method-assign]
        relay.barriers = 0
        turn_until(session, lambda: relay.is_settled and len(pages) == 5, "all pages are published")
        assert pages == [(False, 10)] * 4 + [(False, 5)]
        assert relay.barriers == 5


def test_what_is_acknowledged_is_recorded_although_no_poll_needs_a_barrier(
    relay: SettledRelay, conn: Connection
) -> None:
    """Where several groups are polled, nothing travels with the polls, and each turn may find more."""
    session = relay.session
    relay.send(1)
    relay.turn()
    for _ in range(3):
        relay.acknowledge()
        (group,) = session._groups
        lanes = sorted(group.lanes)
        group.lanes = set(lanes[:3])
        session._groups.append(Group(set(lanes[3:]), group.progress))
        recorded = session.counts.recorded
        relay.send(1)
        relay.turn()
        assert session.counts.recorded == recorded + 1


def test_what_a_poll_found_flushed_is_there_after_a_crash_in_front_of_publishing(
    relay: SettledRelay,
    private_stack: Stack,
    private_topic: str,
    private_database: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publisher = relay.session._publisher
    prepare = publisher.prepare

    def crash(*given: Any) -> None:
        prepare(*given)
        private_stack.kill_postgres()

    monkeypatch.setattr(publisher, "prepare", crash)
    relay.send(1)
    relay.session.run_once(0)
    assert (on_the_wire(relay), relay.barriers) == (1, 0)
    relay.acknowledge()
    monkeypatch.setattr(publisher, "prepare", prepare)
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
