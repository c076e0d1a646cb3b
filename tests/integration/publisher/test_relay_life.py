"""The relay's life: a successor when it dies, and a stop that leaves nothing to be published twice."""

from __future__ import annotations

import psycopg
import pytest

from outbox_local.stack.api import Stack
from outbox_relay.publisher import service, session, wal
from outbox_relay.publisher.session import Session
from tests.support.concurrent_writers import Writers
from tests.support.kafka_records import compare, read_topic
from tests.support.plain_inserts import connect, decide, insert, insert_numbered, numbered, wait_published
from tests.support.relay_process import RelayProcess
from tests.support.relay_thread import RelayThread
from tests.support.servers import MakeDatabase, MakeTopic
from tests.support.waiting import wait_until


def test_a_relay_killed_is_replaced_at_once(database: str, bootstrap_servers: str, topic: str) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers, "--lease", "300") as first:
        insert_numbered(conn, topic, 100)
        wait_published(conn)
        first.kill()
        insert_numbered(conn, topic, 100, start=100)
        with RelayProcess(database, bootstrap_servers, "--lease", "300") as second:
            wait_published(conn)  # long before the lease of the first one ends
            second.stop()
    assert not compare(read_topic(bootstrap_servers, topic), numbered(200)).broken


def test_a_paused_relay_loses_its_lanes_when_its_lease_ends_and_says_so(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers, "--lease", "1") as first:
        insert_numbered(conn, topic, 100)
        wait_published(conn)
        first.pause()
        insert_numbered(conn, topic, 100, start=100)
        with RelayProcess(database, bootstrap_servers, "--lease", "1") as second:
            second.wait_until_running()
            wait_published(conn)
            first.go_on()
            insert_numbered(conn, topic, 100, start=200)
            first.wait_for("lanes lost, joining again")
            first.wait_for("standing by")
            wait_published(conn)
            second.stop()
            wait_until(lambda: first.count("lanes taken") >= 2, "it leads again")
            assert "Traceback" not in first.output()
            first.stop()
    assert not compare(read_topic(bootstrap_servers, topic), numbered(300)).broken


def test_sigterm_settles_what_is_on_the_wire_so_that_nothing_comes_twice(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with Writers(database, topic, seed=7, pace=0.001) as writers:
        for _ in range(4):
            with RelayProcess(database, bootstrap_servers) as relay:
                relay.wait_until_running()
                writers.wait_for(150)
                relay.stop()
        writers.stop()
        with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
            wait_published(conn)
            relay.stop()
        found = compare(read_topic(bootstrap_servers, topic), writers.committed())
    assert not found.broken
    assert found.duplicate_records == 0


def test_the_relay_outlives_its_database_sessions(database: str, bootstrap_servers: str, topic: str) -> None:
    with Writers(database, topic, seed=8) as writers, RelayProcess(database, bootstrap_servers) as relay:
        with connect(database) as conn:
            for count in range(1, 4):
                relay.wait_for("lanes taken", epoch=count)
                writers.wait_for(100)
                conn.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'outbox relay' AND datname = current_database()"
                )
            writers.wait_for(100)
            writers.stop()
            wait_published(conn)
        relay.stop()
        assert "Traceback" not in relay.output()
        assert not compare(read_topic(bootstrap_servers, topic), writers.committed()).broken


def test_a_relay_without_servers_waits_and_still_stops_at_once() -> None:
    with RelayProcess("postgresql://nobody@127.0.0.1:1/none", "127.0.0.1:1") as relay:
        relay.wait_for("Kafka is away")
        relay.stop(seconds=10)


def test_a_schema_that_is_missing_ends_the_relay_with_the_command_that_repairs_it(
    make_database: MakeDatabase, bootstrap_servers: str
) -> None:
    with RelayProcess(make_database(migrated=False), bootstrap_servers) as relay:
        assert relay.wait() != 0
        assert "outbox db upgrade" in relay.output()
        assert "Traceback" not in relay.output()


@pytest.mark.feature("S-14", "S-05", "S-15", "S-13")
def test_half_messages_are_published_when_they_are_committed_and_never_before(
    database: str, bootstrap_servers: str, topic: str
) -> None:
    with connect(database) as conn, RelayProcess(database, bootstrap_servers) as relay:
        relay.wait_until_running()
        half = {
            name: insert(conn, topic, "k", f"k:{number}", state="UNKNOWN", producer_group="g")
            for number, name in enumerate(("committed", "rolled back", "undecided"), 1)
        }
        insert(conn, topic, "k", "k:0")
        wait_published(conn)
        assert [r.value for r in read_topic(bootstrap_servers, topic)] == [b"k:0"]
        decide(conn, half["committed"], "COMMITTED")
        decide(conn, half["rolled back"], "ROLLED_BACK")
        wait_published(conn)
        assert decide(conn, half["rolled back"], "COMMITTED") == 0, "a decision is final"
        with pytest.raises(psycopg.errors.CheckViolation):
            conn.execute(
                "UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [half["rolled back"]]
            )
        insert(conn, topic, "k", "k:9")
        wait_published(conn)
        relay.stop()
        states = dict(
            conn.execute(
                "SELECT convert_from(body, 'UTF8'), status FROM outbox.message_status m JOIN outbox.message USING (id)"
            ).fetchall()
        )
    assert [r.value for r in read_topic(bootstrap_servers, topic)] == [b"k:0", b"k:1", b"k:9"]
    assert states == {
        "k:0": "PUBLISHED",
        "k:1": "PUBLISHED",
        "k:2": "ROLLED_BACK",
        "k:3": "UNKNOWN",
        "k:9": "PUBLISHED",
    }


def rest_after(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for module in (service, session):
        monkeypatch.setattr(module, "REST_AFTER_S", seconds)


def test_a_relay_that_rests_looks_when_something_is_written_or_due(
    private_database: str,
    private_stack: Stack,
    make_private_topic: MakeTopic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time alone makes it look only at what is due: nothing else is written, and no lease is renewed meanwhile."""
    left_out = [False]
    lasts = wal.Quiet.lasts

    def note(quiet: wal.Quiet, now: float, due: float) -> bool:
        left_out.append(lasts(quiet, now, due))
        return left_out[-1]

    def rests() -> bool:
        left_out.clear()
        wait_until(lambda: left_out[-20:] == [True] * 20, "it leaves turns out")
        return True

    monkeypatch.setattr(wal.Quiet, "lasts", note)
    monkeypatch.setattr(wal, "QUIET_S", 3600.0)
    rest_after(monkeypatch, 0.2)
    topic = make_private_topic()
    with (
        connect(private_database) as conn,
        RelayThread(private_database, private_stack.bootstrap_servers, lease=3600.0),
    ):
        insert(conn, topic, "k", b"k:0")
        wait_published(conn)
        assert rests()
        insert(conn, topic, "k", b"k:1")
        wait_published(conn)
        assert rests()
        conn.execute("SET synchronous_commit = off")
        insert(conn, topic, "k", b"k:2")
        wait_published(conn)
        due = conn.execute("SELECT (clock_timestamp() + interval '4 seconds')::text").fetchone()
        insert(conn, topic, "k", b"k:3", deliver_at=due[0])  # type: ignore[index]
        assert rests()
        servers = private_stack.bootstrap_servers
        wait_until(lambda: len(read_topic(servers, topic)) == 4, "the delayed one is published")


def test_a_relay_without_messages_rests_longer_and_a_message_ends_that(
    database: str, bootstrap_servers: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    run_once = Session.run_once

    def note(session: Session, wait: float) -> bool:
        waits.append(wait)
        return run_once(session, wait)

    monkeypatch.setattr(Session, "run_once", note)
    rest_after(monkeypatch, 2.0)
    with connect(database) as conn, RelayThread(database, bootstrap_servers, poll_max=0.02):
        wait_until(lambda: waits and waits[-1] == 0.08, "it rests")
        rested = len(waits)
        insert(conn, topic, "k", b"k:0")
        wait_published(conn)
        wait_until(lambda: min(waits[rested:]) <= 0.02, "it polls often again")
