"""What the relay waits out, with a pause that grows and a reason in one line; and what ends it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from outbox_migrations import api
from outbox_relay.database.schema import SchemaError
from outbox_relay.publisher import service
from outbox_relay.publisher.finder import Finder
from outbox_relay.publisher.leading import Leadership
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.service import Relay
from tests.support.kafka_records import read_topic
from tests.support.plain_inserts import Connection, connect, insert, wait_published
from tests.support.waiting import wait_until

REFUSED = "PostgreSQL refused, trying again"
AWAY = "PostgreSQL is away"
END_SESSIONS = """
    SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
    WHERE application_name = 'outbox relay' AND datname = current_database()
"""


class Running:
    """A relay on a thread of the test."""

    def __init__(self, dsn: str, bootstrap_servers: str, caplog: pytest.LogCaptureFixture) -> None:
        self.relay = Relay(RelayOptions(dsn, bootstrap_servers))
        self.error: BaseException | None = None
        self._caplog = caplog
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            self.error = error

    def fields(self, event: str) -> list[dict[str, Any]]:
        """The fields of all log lines of this event."""
        return [vars(each)["fields"] for each in self._caplog.records if each.getMessage() == event]

    def wait_for(self, event: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until it has been logged so many times."""
        wait_until(lambda: len(self.fields(event)) >= count, event, seconds=60)
        return self.fields(event)

    def ended(self) -> BaseException | None:
        """Wait for its end, and return what it raised."""
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.error


@contextmanager
def running(dsn: str, bootstrap_servers: str, caplog: pytest.LogCaptureFixture) -> Iterator[Running]:
    with caplog.at_level(logging.INFO, "outbox"):
        ran = Running(dsn, bootstrap_servers, caplog)
        ran.thread.start()
        try:
            yield ran
        finally:
            ran.relay.stop()
            ran.thread.join(60)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin with a short pause: a test looks at how it grows, not at how long it is."""
    monkeypatch.setattr(service, "FIRST_PAUSE_S", 0.01)


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


def test_a_missing_privilege_is_waited_for_and_logged_less_and_less_often(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    insert(conn, topic, "k", "k:0")
    conn.execute("REVOKE INSERT ON outbox.publication FROM outbox_relay")
    as_relay = make_conninfo(database, options="-c role=outbox_relay")
    with running(as_relay, bootstrap_servers, caplog) as ran:
        refused = ran.wait_for(REFUSED, 5)
        conn.execute("GRANT INSERT ON outbox.publication TO outbox_relay")
        wait_published(conn)
        assert {each["sqlstate"] for each in refused} == {"42501"}
        assert refused[0]["error"].startswith("permission denied for table publication")
        pauses = [each["next_try_in_s"] for each in refused]
        assert pauses == pytest.approx([0.01 * 2**n for n in range(len(pauses))])
        # Now that something was recorded, the next trouble begins with a short pause.
        conn.execute(END_SESSIONS)
        (away, *_) = ran.wait_for(AWAY)
        assert away["next_try_in_s"] == pytest.approx(0.01)
    assert ran.ended() is None
    records = read_topic(bootstrap_servers, topic)
    assert len(records) <= len(ran.fields("lanes taken"))


def test_sessions_that_record_nothing_have_pauses_that_grow_to_a_minute() -> None:
    relay = Relay(RelayOptions("dbname=none", "127.0.0.1:1"))
    relay.stop()  # so that no pause is waited for
    relay._unsettled = 1
    pauses = []
    for _ in range(20):
        relay._pause_after(psycopg.errors.InsufficientPrivilege())
        pauses.append(relay._backoff.pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60.0
    relay._unsettled = 0
    relay._pause_after(psycopg.OperationalError("gone"))
    assert relay._backoff.pause == 5.0


def dropped(conn: Connection) -> bool:
    """Drop the schema; PostgreSQL may refuse that once, to end a deadlock with a poll of the relay."""
    try:
        conn.execute("DROP SCHEMA outbox CASCADE")
    except psycopg.errors.DeadlockDetected:
        return False
    return True


def test_a_schema_that_is_dropped_and_made_again_is_waited_for(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with running(database, bootstrap_servers, caplog) as ran:
        ran.wait_for("lanes taken")
        wait_until(lambda: dropped(conn), "the schema is dropped")
        waiting = wait_until(
            lambda: [each for each in ran.fields(REFUSED) if "no outbox schema" in each["error"]], "it waits"
        )
        assert "\n" not in waiting[0]["error"]
        api.upgrade(database)
        ran.wait_for("lanes taken", 2)
        insert(conn, topic, "k", "k:0")
        wait_published(conn)
    assert ran.ended() is None
    assert [record.value for record in read_topic(bootstrap_servers, topic)] == [b"k:0"]


def test_a_schema_that_became_newer_ends_the_relay(
    database: str, bootstrap_servers: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with running(database, bootstrap_servers, caplog) as ran:
        ran.wait_for("lanes taken")
        conn.execute("UPDATE outbox.schema_version SET version_num = '9999', oldest_software = '9999'")
        conn.execute(END_SESSIONS)
        assert isinstance(ran.ended(), SchemaError)
        assert "newer than" in str(ran.error)


@pytest.mark.parametrize(
    ("where", "defect"),
    [
        ((Leadership, "read"), ZeroDivisionError("a defect")),
        ((Finder, "poll"), psycopg.ProgrammingError("the query has 2 placeholders")),
    ],
)
def test_a_defect_ends_the_relay_instead_of_being_tried_again(
    database: str,
    bootstrap_servers: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    *,
    where: tuple[type[object], str],
    defect: Exception,
) -> None:
    """One of the relay's own while it publishes is tried again; see test_relay_malformed.py."""

    def broken(*_: Any) -> None:
        raise defect

    monkeypatch.setattr(*where, broken)
    with running(database, bootstrap_servers, caplog) as ran:
        assert ran.ended() is defect
        assert not ran.fields(REFUSED)
        assert len(ran.fields("lanes taken")) <= 1


def test_a_defect_of_the_upkeep_ends_the_relay(
    database: str, bootstrap_servers: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> bool:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr("outbox_relay.publisher.upkeep.keep_ahead", broken)
    with running(database, bootstrap_servers, caplog) as ran:
        assert isinstance(ran.ended(), ZeroDivisionError)


def test_a_server_that_is_away_is_logged_in_one_line_without_advice(
    bootstrap_servers: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running("postgresql://nobody@127.0.0.1:1/none", bootstrap_servers, caplog) as ran:
        (away, *_) = ran.wait_for(AWAY)
    assert away["error"].startswith('cannot reach database "none" at 127.0.0.1:1: ')
    assert "\n" not in away["error"]
    assert "outbox up" not in away["error"]


def test_the_last_line_counts_what_all_sessions_published(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with running(database, bootstrap_servers, caplog) as ran:
        for count in (1, 2):
            ran.wait_for("lanes taken", count)
            insert(conn, topic, "k", f"k:{count}")
            wait_published(conn)
            conn.execute(END_SESSIONS)
        ran.wait_for("lanes taken", 3)
    assert ran.ended() is None
    assert ran.fields("stopped")[0]["published"] == 2


@pytest.mark.parametrize("given", [{}, {"keepalives_idle": 77, "tcp_user_timeout": 0}], ids=["", "given"])
def test_the_relays_connections_notice_a_silent_server_within_a_lease(
    database: str, bootstrap_servers: str, given: dict[str, int]
) -> None:
    relay = Relay(RelayOptions(make_conninfo(database, **given), bootstrap_servers, lease=8))
    with relay._options.connect() as conn:
        found = {each.keyword.decode(): (each.val or b"").decode() for each in conn.pgconn.info}
    assert found["keepalives_interval"] == "2"
    assert found["keepalives_count"] == "3"
    assert (found["keepalives_idle"], found["tcp_user_timeout"]) == (("77", "0") if given else ("3", "8000"))
