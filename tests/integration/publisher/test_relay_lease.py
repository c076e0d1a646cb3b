"""The lease beside the loop: kept while the loop works, given up when it hangs, and never a permission to publish."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher import renewal
from outbox_relay.publisher.finder import Finder
from outbox_relay.publisher.lease import LanesLockedError, Lease, LeaseLostError
from outbox_relay.publisher.opening import RelayOptions
from outbox_relay.publisher.renewal import Renewal
from outbox_relay.publisher.service import Relay
from outbox_relay.publisher.session import Session
from tests.support.kafka_records import read_topic
from tests.support.lanes import LanesHeldError, take
from tests.support.locks import holding, wait_for_waiting
from tests.support.plain_inserts import Connection, connect, insert_numbered, wait_published
from tests.support.waiting import wait_until

LEASED = "SELECT extract(epoch FROM max(leased_until)) FROM outbox.lease"


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        yield conn


class Ran:
    """A relay that runs on a thread of the test; stopped, and its end looked at, when the block ends."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.relay.run()
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            self.error = error

    def end(self) -> BaseException | None:
        """Stop it and return what it raised."""
        self.relay.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.error


@contextmanager
def running(relay: Relay) -> Iterator[Ran]:
    ran = Ran(relay)
    try:
        yield ran
    finally:
        ran.end()


def may_take(conn: Connection, owner: str = "another") -> bool:
    """Whether another relay could take the lanes now; takes nothing.

    It cannot either while a commit of theirs waits for the disk for longer than it waits for their lock.
    """
    try:
        with conn.transaction(force_rollback=True):
            take(conn, owner, 0.5)
    except (LanesHeldError, LanesLockedError):
        return False
    return True


def renewals(conn: Connection, count: int) -> None:
    """Wait until the lease has been renewed so many times more."""
    for _ in range(count):
        before = conn.execute(LEASED).fetchone()
        wait_until(lambda before=before: conn.execute(LEASED).fetchone() != before, "it is renewed")  # type: ignore[misc]


def renew_often(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Renew a lease of so many seconds every 100 ms: a busy machine does not let it run out between two renewals."""
    monkeypatch.setattr(renewal, "RENEWALS_PER_LEASE", seconds * 10)


def watched(dsn: str, held: Lease, loop: Connection, *, stalled_after: float = 60.0) -> Renewal:
    return Renewal(held, lambda: connect(dsn), loop.info.backend_pid, stalled_after=stalled_after)


def test_a_listing_longer_than_the_lease_does_not_lose_the_lanes(
    database: str, bootstrap_servers: str, topic: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds, listing, listed = 3.0, threading.Event(), threading.Event()
    renew_often(monkeypatch, seconds)
    backlog = Finder.backlog

    def slowly(finder: Finder, *bounds: Any) -> Any:
        listing.set()
        finder.conn.execute("SELECT pg_sleep(%s)", [seconds * 1.5])
        listed.set()
        return backlog(finder, *bounds)

    monkeypatch.setattr(Finder, "backlog", slowly)
    insert_numbered(conn, topic, 200)
    with running(Relay(RelayOptions(database, bootstrap_servers, lease=seconds, page=10))) as ran:
        assert listing.wait(60)
        asked = 0
        while not listed.is_set():
            assert not may_take(conn)
            asked += 1
        wait_published(conn)
        assert ran.end() is None
    assert asked > 2
    assert len(read_topic(bootstrap_servers, topic)) == 200


def test_a_loop_that_hangs_loses_the_lanes_and_the_log_says_so(
    database: str, bootstrap_servers: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    hangs, go_on = threading.Event(), threading.Event()

    def hang(session: Session) -> None:
        hangs.set()
        go_on.wait(60)

    relay = Relay(RelayOptions(database, bootstrap_servers, lease=0.3, stalled_after=0.3))
    relay.on_turn = hang
    with caplog.at_level(logging.INFO, "outbox"), running(relay) as ran:
        try:
            assert hangs.wait(60)
            wait_until(lambda: may_take(conn), "another relay may take the lanes")
            take(conn, "another", 300)
        finally:
            go_on.set()
        wait_until(lambda: "standing by" in caplog.text, "it joins again, without lanes")
        assert ran.end() is None
    assert "lanes lost, joining again" in caplog.text
    assert "the publishing loop hangs: its lease is not renewed any more" in caplog.text


def test_a_loop_that_beats_again_in_time_keeps_its_lanes(
    database: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database) as loop, caplog.at_level(logging.INFO, "outbox"):
        held = take(loop, "me", 60)
        held.seconds = 0.1  # renewed every 33 ms, and until then as long as it was taken for
        thread = watched(database, held, loop, stalled_after=0.05)
        thread.start()
        try:
            wait_until(lambda: "hangs" in caplog.text, "it has stopped renewing")

            def beats() -> bool:
                thread.beat()
                return "the publishing loop goes on" in caplog.text

            wait_until(beats, "it renews again")
        finally:
            thread.stop()


def test_a_session_that_waits_for_its_client_is_no_sign_of_work(database: str, conn: Connection) -> None:
    with connect(database) as loop:
        held = take(loop, "me", 0.2)
        thread = watched(database, held, loop, stalled_after=0.2)
        # The server wants to send and nobody reads: the loop hangs in the middle of an answer.
        loop.pgconn.send_query(b"SELECT repeat('x', 1000000) FROM generate_series(1, 100)")
        thread.start()
        try:
            waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"
            wait_until(
                lambda: conn.execute(waits, [loop.info.backend_pid]).fetchone() == ("ClientWrite",),
                "it waits",
            )
            wait_until(lambda: may_take(conn), "another relay may take the lanes")
        finally:
            thread.stop()
            loop.pgconn.finish()


def test_a_loop_that_waits_for_a_lock_says_who_holds_it(
    database: str, conn: Connection, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_often(monkeypatch, 60)
    with connect(database) as loop, caplog.at_level(logging.INFO, "outbox"):
        held = take(loop, "me", 60)
        thread = watched(database, held, loop, stalled_after=0.3)
        with psycopg.connect(database, application_name="somebody's psql") as other:
            other.execute("LOCK TABLE outbox.topic")
            pid = other.info.backend_pid
            waiting = threading.Thread(target=loop.execute, args=["SELECT count(*) FROM outbox.topic"])
            waiting.start()
            try:
                wait_for_waiting(conn, "%FROM outbox.topic%")
                thread.start()
                wait_until(lambda: "busy for longer than a lease" in caplog.text, "it says so")
                assert not may_take(conn)
            finally:
                thread.stop()
                other.rollback()
                waiting.join(60)
    (said, *_) = [each for each in caplog.records if "busy for longer" in each.getMessage()]
    fields = vars(said)["fields"]
    assert fields["waits_on"] == "Lock: relation"
    assert fields["held_by"] == f"somebody's psql (pid {pid}, idle in transaction)"


def test_lanes_of_a_loop_whose_session_died_may_be_taken_though_they_are_renewed(
    database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_often(monkeypatch, 300)
    with connect(database) as loop:
        held = take(loop, "me", 300)
        thread = watched(database, held, loop)
        thread.start()
        try:
            renewals(conn, 1)
            assert not may_take(conn)
            conn.execute("SELECT pg_terminate_backend(%s, 10000)", [loop.info.backend_pid])
            wait_until(lambda: may_take(conn), "the lanes are free")
        finally:
            thread.stop()


def test_the_lease_is_renewed_again_after_its_own_connection_died(
    database: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Connection] = []

    def dial() -> Connection:
        made.append(connect(database))
        return made[-1]

    with connect(database) as loop, caplog.at_level(logging.INFO, "outbox"):
        held = take(loop, "me", 60)
        held.seconds = 0.2
        thread = Renewal(held, dial, loop.info.backend_pid, stalled_after=60)
        thread.start()
        try:
            renewals(conn, 1)
            conn.execute("SELECT pg_terminate_backend(%s, 10000)", [made[0].info.backend_pid])
            wait_until(lambda: len(made) > 1, "it connects again")
            renewals(conn, 1)
            thread.beat()
        finally:
            thread.stop()
    assert "lease not renewed, trying again" in caplog.text


@pytest.mark.parametrize("way", ["taken", "given back"])
def test_a_renewal_never_brings_back_lanes_that_were_given_up(
    database: str, conn: Connection, way: str
) -> None:
    with connect(database) as loop:
        held = take(loop, "me", 60)
        held.seconds = 0.2
        thread = watched(database, held, loop)
        expected = []
        if way == "taken":
            conn.execute("UPDATE outbox.lease SET leased_until = '-infinity'")
            expected = [("another", take(conn, "another", 60).epoch)]
        else:
            held.release(loop)
        thread.start()

        def beat() -> bool:
            try:
                thread.beat()
            except LeaseLostError:
                return True
            return False

        wait_until(beat, "the loop is told")
        thread.stop()
        assert conn.execute("SELECT owner, epoch FROM outbox.lease").fetchall() == expected


def test_a_renewal_that_waits_for_a_taker_finds_its_lease_gone(database: str, conn: Connection) -> None:
    with connect(database) as loop, psycopg.connect(database) as taker:
        held = take(loop, "me", 60)
        held.seconds = 30.0
        taker.execute("UPDATE outbox.lease SET leased_until = '-infinity'")
        take(taker, "another", 60)
        thread = watched(database, held, loop)
        thread.start()
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database() AND query LIKE 'UPDATE outbox.lease%'"
        )
        wait_until(lambda: conn.execute(waits).fetchone() == (1,), "the renewal waits")
        taker.commit()
        wait_until(lambda: not thread._thread.is_alive(), "the renewal has ended")
        with pytest.raises(LeaseLostError):
            thread.beat()


def test_a_defect_of_the_renewing_thread_ends_the_loop_with_it(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a defect")

    with connect(database) as loop:
        thread = watched(database, take(loop, "me", 0.3), loop)
        monkeypatch.setattr(Lease, "renew", broken)
        thread.start()
        wait_until(lambda: not thread._thread.is_alive(), "the thread has ended")
        with pytest.raises(ZeroDivisionError):
            thread.beat()


def dialled(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Run something between the renewal's look at the loop and its statement."""
    progress = renewal.Renewal._shows_progress

    def look(self: Renewal, conn: Connection) -> bool:
        found = progress(self, conn)
        then()
        return found

    monkeypatch.setattr(renewal.Renewal, "_shows_progress", look)


def test_a_taker_between_a_renewals_look_and_its_statement_keeps_the_lanes(
    database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(database) as loop:
        held = take(loop, "me", 0.01)
        taken: list[Lease] = []

        def take_over() -> None:
            if not taken:
                wait_until(lambda: may_take(conn), "the lease has run out")
                taken.append(take(conn, "another", 60))

        dialled(monkeypatch, take_over)
        held.seconds = 0.3
        thread = watched(database, held, loop)
        thread.start()
        wait_until(lambda: not thread._thread.is_alive(), "the renewal has ended")
        with pytest.raises(LeaseLostError):
            thread.beat()
        owners = conn.execute("SELECT DISTINCT owner, epoch FROM outbox.lane").fetchall()
        assert owners == [("another", taken[0].epoch)]


def test_lanes_are_given_back_although_somebody_holds_the_row_of_one(database: str, conn: Connection) -> None:
    held = take(conn, "mine", 300)
    conn.execute("SET statement_timeout = '20 s'")
    with holding(database, "SELECT FROM outbox.lane WHERE lane = 3 FOR UPDATE"):
        held.release(conn)
        owners = conn.execute("SELECT lane FROM outbox.lane WHERE owner IS NOT NULL").fetchall()
        assert owners == [(3,)]
    assert may_take(conn), "without its lease the name that is left owns nothing"
