"""Producers, the relay, the sweep and the commands go on while partitions are dropped, and after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest

from tests.support.full_partitions import WIDTH, History, table
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import insert, insert_numbered, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.waiting import wait_until

WAITING_FOR = """
    SELECT a.application_name, a.query FROM pg_stat_activity a
    WHERE a.datname = current_database() AND a.application_name = 'producer' AND EXISTS (
        SELECT FROM unnest(pg_blocking_pids(a.pid)) b (pid) JOIN pg_stat_activity h ON h.pid = b.pid
        WHERE h.application_name = %s)
"""


class Producers:
    """Threads that insert one message after the other."""

    def __init__(self, dsn: str, topic: str, count: int = 3) -> None:
        self._dsn, self._topic = dsn, topic
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(count)
        self.written = [0] * count
        self._futures = [self._pool.submit(self._write, number) for number in range(count)]

    def _write(self, number: int) -> None:
        with psycopg.connect(self._dsn, autocommit=True, application_name="producer") as conn:
            while not self._stop.is_set():
                insert(conn, self._topic, f"k{number}", f"{number}:{self.written[number]}")
                self.written[number] += 1

    def wait_for_more(self, messages: int = 30) -> None:
        """Return when each has written so many more."""
        before = list(self.written)
        wait_until(
            lambda: all(now >= then + messages for now, then in zip(self.written, before, strict=True)),
            "the producers go on",
        )

    def stop(self) -> None:
        self._stop.set()
        for future in self._futures:
            future.result()
        self._pool.shutdown()


class Watch:
    """Sees producers that wait for the session that drops history, as PostgreSQL tells it.

    They may wait for each other: whoever lengthens the file of a table holds off the others (`Lock: extend`).
    """

    def __init__(self, dsn: str, application_name: str = "outbox history") -> None:
        self._dsn, self._application_name = dsn, application_name
        self._stop = threading.Event()
        self.seen: list[tuple[str, str]] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as conn:
            while not self._stop.is_set():
                self.seen += conn.execute(WAITING_FOR, [self._application_name]).fetchall()
                self.looks += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def history(database: str) -> Iterator[History]:
    with closing(History(database)) as history:
        yield history


def certify(history: History) -> None:
    top = value(history.conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    history.certify(hi=top + 1_000_000)


def test_an_insert_waits_for_no_step_of_a_removal_even_behind_a_long_transaction(
    history: History,
) -> None:
    for number in range(3):
        history.fill(number)
    history.conn.execute("SELECT outbox.add_partition(1000000)")
    history.leave(4)
    certify(history)
    producers, watch = Producers(history.dsn, "t"), Watch(history.dsn)
    try:
        producers.wait_for_more()
        with psycopg.connect(history.dsn) as long:
            # Every detach has to wait for it; producers come between the steps, and must not queue behind them.
            insert(long, "t", "k", b"long")
            with RelayProcess(
                history.dsn, "", service="history", action=("drop", "--older-than", "0s")
            ) as process:
                wait_until(lambda: history.state("message") == "pending", "the detach waits")
                producers.wait_for_more()
                wait_until(lambda: watch.looks > 10, "there was time to see one that waits")
                long.commit()
                producers.wait_for_more()
                assert process.wait() == 0
        assert [history.state("message", number) for number in range(3)] == ["gone", "gone", "gone"]
        producers.wait_for_more()
    finally:
        watch.stop()
        producers.stop()
    assert not watch.seen


def test_a_relay_publishes_on_while_partitions_are_dropped_under_it(
    history: History, topic: str, bootstrap_servers: str
) -> None:
    history.conn.execute("UPDATE outbox.lane SET owner = NULL, epoch = 0, system_identifier = NULL")
    history.conn.execute("DELETE FROM outbox.lease")
    history.conn.execute("SELECT outbox.add_partition(1000000)")
    with RelayProcess(history.dsn, bootstrap_servers) as relay:
        relay.wait_until_running()
        for number in range(3):
            history.go_to(number * WIDTH + 1)
            insert_numbered(history.conn, topic, 100, start=number * 100)
            wait_published(history.conn)
        producers = Producers(history.dsn, topic, count=2)
        try:
            history.go_to(4 * WIDTH + 1)
            producers.wait_for_more()
            certify(history)
            # The relay may still name them: a partition leaves its statement some seconds after it was filled.
            ran = outbox("history", "drop", "--older-than", "0s", "--json", OUTBOX_DSN=history.dsn)
            assert [part["outcome"] for part in ran.json["partitions"]][:3] == ["dropped"] * 3
            assert relay.is_running
            producers.wait_for_more()
        finally:
            producers.stop()
        wait_published(history.conn)
        left = value(history.conn, "SELECT count(*) FROM outbox.message")
        published = value(
            history.conn, "SELECT sum(pg_catalog.cardinality(positions)) FROM outbox.publication"
        )
        assert published == left, "everything once: nothing is lost, nothing is published again"
        succeed("status", "--json", OUTBOX_DSN=history.dsn)
        assert outbox("message", "show", "1", OUTBOX_DSN=history.dsn).code == 1
        newest = value(history.conn, "SELECT max(id) FROM outbox.message")
        assert "PUBLISHED" in succeed("message", "show", str(newest), OUTBOX_DSN=history.dsn).out
        assert succeed("message", "ls", "--json", OUTBOX_DSN=history.dsn).json
        succeed("db", "partitions", "--ensure", "1", OUTBOX_DSN=history.dsn)
        relay.stop()
    # A relay that starts now goes on from what is recorded, and publishes nothing again.
    with RelayProcess(history.dsn, bootstrap_servers) as relay:
        relay.wait_until_running()
        insert(history.conn, topic, "k", b"last")
        wait_published(history.conn)
        relay.stop()
    published = value(history.conn, "SELECT sum(pg_catalog.cardinality(positions)) FROM outbox.publication")
    assert published == left + 1


def test_progress_that_stood_in_a_dropped_publication_brings_nothing_again(
    history: History, topic: str, bootstrap_servers: str
) -> None:
    history.conn.execute("UPDATE outbox.lane SET owner = NULL, epoch = 0, system_identifier = NULL")
    history.conn.execute("DELETE FROM outbox.lease")
    with RelayProcess(history.dsn, bootstrap_servers) as relay:
        relay.wait_until_running()
        insert_numbered(history.conn, topic, 100)
        wait_published(history.conn)
        # All that the relay has recorded lies in the first range, which the sequence then leaves without a message.
        history.go_to(WIDTH + 2)
        certify(history)
        ran = outbox("history", "drop", "--older-than", "0s", "--json", OUTBOX_DSN=history.dsn)
        assert ran.json["partitions"][0]["outcome"] == "dropped"
        relay.kill()
    assert history.state("publication") == "gone"
    insert(history.conn, topic, "k", b"while no relay runs")
    assert succeed("status", "--json", OUTBOX_DSN=history.dsn).json["topics"][0]["backlog"] == 1
    with RelayProcess(history.dsn, bootstrap_servers) as relay:
        relay.wait_until_running()
        wait_published(history.conn)
        relay.stop()
    assert value(history.conn, "SELECT sum(pg_catalog.cardinality(positions)) FROM outbox.publication") == 1
    assert table("message") not in history.tables()
