"""History is dropped without a warehouse: by the command, and by a relay, which nobody has to wait for.

What dies between two steps is ended by the next run, of a relay or of the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher.upkeep import STATEMENTS as UPKEEP
from tests.integration.retention.test_history_beside import Producers, Watch
from tests.support.full_partitions import WIDTH, History
from tests.support.outbox_command import Ran, outbox
from tests.support.plain_inserts import insert, insert_numbered, wait_published
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.stopped_lanes import set_aside
from tests.support.waiting import wait_until

WITHOUT = ("--without-warehouse",)
RETAIN = ("--retain", "0s", "--retain-without-warehouse", "--retain-every", "1s")
RETAINING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'outbox relay retention' AND wait_event_type = 'Lock'
"""
GONE, ALL = ["gone"] * 3, ["attached"] * 3


@pytest.fixture
def history(database: str) -> Iterator[History]:
    """Lanes that relays may take, and no message yet."""
    with closing(History(database)) as history:
        history.conn.execute("UPDATE outbox.lane SET owner = NULL, epoch = 0, system_identifier = NULL")
        history.conn.execute("DELETE FROM outbox.lease")
        yield history


@pytest.fixture
def full(history: History) -> History:
    """Two full ranges of ids, published, and a third one that has begun."""
    for number in range(3):
        history.fill(number)
    return history


def drop(history: History, *options: str, older_than: str = "0s") -> Ran:
    return outbox("history", "drop", "--older-than", older_than, "--json", *options, OUTBOX_DSN=history.dsn)


def outcomes(ran: Ran) -> list[str]:
    return [
        " ".join([part["outcome"], *(reason["name"] for reason in part["reasons"])])
        for part in ran.json["partitions"]
    ]


def states(history: History, number: int = 0) -> list[str]:
    return [history.state(kind, number) for kind in ("message", "publication", "event")]


@pytest.mark.feature("H-13")
def test_published_history_is_dropped_without_a_certificate(full: History) -> None:
    assert outcomes(drop(full))[:2] == ["refused unexported", "refused unexported"]
    ran = drop(full, *WITHOUT)
    assert (ran.code, outcomes(ran)) == (0, ["dropped", "dropped", "kept current", "kept current"])
    assert value(full.conn, "SELECT min(id) FROM outbox.message") == 2 * WIDTH + 1
    assert ran.json["targets"] is None


@pytest.mark.feature("H-13")
def test_what_is_younger_than_the_retention_stays(full: History) -> None:
    full.conn.execute("UPDATE outbox.message SET born_at = born_at - interval '31 days' WHERE id <= 1000")
    full.conn.execute("UPDATE outbox.publication SET published_at = published_at - interval '31 days'")
    ran = drop(full, *WITHOUT, older_than="30d")
    assert (ran.code, outcomes(ran)[:2]) == (0, ["dropped", "kept young"])


def _half(history: History) -> None:
    history.go_to(500)
    insert(history.conn, "t", "h", b"half", state="UNKNOWN", producer_group="g")
    history.go_to(2 * WIDTH + 100)


def _unpublished(history: History) -> None:
    history.go_to(500)
    insert(history.conn, "t", "k", b"late")
    history.go_to(2 * WIDTH + 100)


def _waiting(history: History) -> None:
    history.conn.execute(
        "INSERT INTO outbox.waiting (id, message_id, reason) "
        "SELECT id, message_id, 'parked' FROM outbox.message WHERE id = 5"
    )


@pytest.mark.feature("H-13")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_half, "undecided"),
        (_unpublished, "unpublished"),
        (_waiting, "waiting"),
        (lambda history: set_aside(history.conn, 5), "dead"),
    ],
)
def test_what_is_not_final_keeps_its_range(
    full: History, make: Callable[[History], Any], reason: str
) -> None:
    make(full)
    ran = drop(full, *WITHOUT)
    assert ran.code == 1
    assert outcomes(ran)[:2] == [f"refused {reason}", "dropped"]
    assert states(full) == ALL


def test_a_rolled_back_half_message_is_final(full: History) -> None:
    _half(full)
    full.conn.execute("UPDATE outbox.message SET state = 'ROLLED_BACK' WHERE id = 500")
    full.conn.execute("DELETE FROM outbox.pending_check")
    assert outcomes(drop(full, *WITHOUT))[:2] == ["dropped", "dropped"]


@pytest.mark.feature("H-13")
def test_a_database_with_certificates_needs_a_further_option(full: History) -> None:
    full.certify(problems=1)
    ran = drop(full, *WITHOUT)
    assert ran.code == 1
    assert "a warehouse has certificates: lake" in ran.err
    assert "--despite-certificates" in ran.err
    assert states(full) == ALL
    assert outcomes(drop(full, *WITHOUT, "--despite-certificates"))[:2] == ["dropped", "dropped"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--despite-certificates",), "--despite-certificates needs --without-warehouse"),
        ((*WITHOUT, "--target", "lake"), "--target and --without-warehouse contradict each other"),
    ],
)
def test_options_that_contradict_each_other_are_refused(database: str, options: Any, error: str) -> None:
    ran = outbox("history", "drop", "--older-than", "0s", *options, OUTBOX_DSN=database)
    assert (ran.code, error in ran.err) == (2, True)


# By the relay ----------------------------------------------------------------------------------------------


def fill(history: History, topic: str, ranges: int = 2) -> None:
    """Write messages into ranges for the relay to publish, and go on in the next range."""
    for number in range(ranges):
        history.go_to(number * WIDTH + 1)
        insert_numbered(history.conn, topic, 20, start=number * WIDTH)
    history.go_to(ranges * WIDTH + 1)
    insert(history.conn, topic, "k", b"k:1")


@contextmanager
def using(history: History, table: str, mode: str) -> Iterator[None]:
    """A transaction that holds a lock on a table."""
    with psycopg.connect(history.dsn) as conn:
        conn.execute(f"LOCK TABLE {table} IN {mode} MODE")
        yield
        conn.rollback()


def gone(history: History, number: int = 0) -> None:
    wait_until(lambda: states(history, number) == GONE, f"range {number} is dropped")


def lost_to_the_sweep(history: History) -> list[Any]:
    snapshot = value(history.conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    values = {"lowest": 1, "lowest_publication": 1, "lanes": list(range(8)), "xmax": snapshot, "xip": "{}"}
    values |= {"since_xmin": "3", "since_xmax": "3", "since_xip": "{}", "most": 100}
    return history.conn.execute(UPKEEP["lost"], values).fetchall()


@pytest.mark.feature("H-13")
def test_a_relay_drops_what_it_published_and_publishes_on(
    history: History, topic: str, bootstrap_servers: str
) -> None:
    with RelayProcess(history.dsn, bootstrap_servers, *RETAIN) as relay:
        relay.wait_until_running()
        fill(history, topic)
        gone(history, 0)
        gone(history, 1)
        relay.wait_for("history dropped", partition="message_p000000000000001", messages=20)
        insert(history.conn, topic, "k", b"k:2")
        wait_published(history.conn)
        relay.stop()
    assert value(history.conn, "SELECT sum(pg_catalog.cardinality(positions)) FROM outbox.publication") == 2
    assert lost_to_the_sweep(history) == []


@pytest.mark.feature("H-13")
def test_no_producer_waits_behind_a_relay_that_waits_for_locks(
    history: History, topic: str, bootstrap_servers: str
) -> None:
    history.conn.execute("SELECT outbox.add_partition(1000000)")
    with RelayProcess(history.dsn, bootstrap_servers) as relay:
        relay.wait_until_running()
        fill(history, topic)
        wait_published(history.conn)
        relay.stop()
    with RelayProcess(history.dsn, bootstrap_servers, *RETAIN) as relay:
        # A vacuum is in the way of the first step, then a reader's transaction in the way of the second one.
        with using(history, "outbox.message", "SHARE UPDATE EXCLUSIVE"):
            wait_until(lambda: value(history.conn, RETAINING) == 1, "the relay waits for the vacuum")
            _insert_beside(history, topic)
            assert states(history) == ALL
            reader = psycopg.connect(history.dsn)
            reader.execute("SELECT count(*) FROM outbox.message")
        wait_until(lambda: history.state("message") == "pending", "the detach waits for the reader")
        _insert_beside(history, topic)
        assert states(history) == ["pending", "attached", "attached"]
        reader.close()
        gone(history, 0)
        gone(history, 1)
        relay.stop()


def _insert_beside(history: History, topic: str) -> None:
    """Insert from three sessions; none of them is ever seen to wait for the relay's."""
    producers, watch = Producers(history.dsn, topic), Watch(history.dsn, "outbox relay retention")
    try:
        producers.wait_for_more(50)
        wait_until(lambda: watch.looks > 10, "there was time to see one that waits")
    finally:
        producers.stop()
        watch.stop()
    assert not watch.seen


@pytest.mark.feature("H-13")
@pytest.mark.parametrize("finisher", ["relay", "command"])
def test_a_relay_killed_between_detach_and_drop_is_finished_by_the_next_run(
    history: History, topic: str, bootstrap_servers: str, finisher: str
) -> None:
    with RelayProcess(history.dsn, bootstrap_servers, *RETAIN) as relay:
        relay.wait_until_running()
        # Of the three tables one is detached, and the second one's detach cannot end.
        with using(history, "outbox.publication", "ACCESS SHARE"):
            fill(history, topic, 1)
            wait_until(lambda: states(history) == ["detached", "pending", "attached"], "it is half done")
            relay.kill()
            history.conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                "AND application_name = 'outbox relay retention'"
            )
    assert lost_to_the_sweep(history) == []
    if finisher == "command":
        wait_until(lambda: drop(history, *WITHOUT).code == 0, "the command finishes")
        assert states(history) == GONE
        return
    with RelayProcess(history.dsn, bootstrap_servers, *RETAIN) as relay:
        gone(history)
        wait_published(history.conn)
        relay.stop()


@pytest.mark.feature("H-13")
def test_of_two_that_drop_at_once_one_does_and_each_range_goes_once(
    history: History, topic: str, bootstrap_servers: str
) -> None:
    with (
        RelayProcess(history.dsn, bootstrap_servers, *RETAIN) as first,
        RelayProcess(history.dsn, bootstrap_servers, *RETAIN) as second,
    ):
        with using(history, "outbox.message", "SHARE UPDATE EXCLUSIVE"):
            fill(history, topic)
            wait_published(history.conn)
            wait_until(lambda: value(history.conn, RETAINING) == 1, "one of them waits for a lock")
            beside = drop(history, *WITHOUT)
            assert beside.code == 1
            assert "is at work in this database, or a relay with --retain; nothing was changed" in beside.err
        gone(history, 0)
        gone(history, 1)
        wait_until(
            lambda: first.count("history dropped") + second.count("history dropped") == 2, "both are logged"
        )
        for relay in (first, second):
            assert relay.find("upkeep failed, trying again") is None
            relay.stop()


def test_a_relay_that_may_not_drop_says_so_and_publishes_on(
    history: History, topic: str, bootstrap_servers: str
) -> None:
    plain = psycopg.conninfo.make_conninfo(history.dsn, options="-c role=outbox_relay")
    with RelayProcess(plain, bootstrap_servers, *RETAIN) as relay:
        relay.wait_until_running()
        fill(history, topic)
        assert "may not drop partitions" in relay.wait_for("history is not dropped")["error"]
        wait_published(history.conn)
        relay.stop()
    assert states(history) == ALL
    with RelayProcess(plain, bootstrap_servers, *RETAIN, "--retain-dsn", history.dsn) as relay:
        gone(history)
        relay.stop()
