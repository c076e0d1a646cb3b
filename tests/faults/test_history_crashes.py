"""A removal that dies between any two of its steps is finished, or taken back, by the next run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from outbox_relay.publisher.upkeep import STATEMENTS as UPKEEP
from tests.support.bare_reader import Reading
from tests.support.full_partitions import WIDTH, History, table
from tests.support.outbox_command import Ran, outbox
from tests.support.plain_inserts import connect, insert
from tests.support.publications import value
from tests.support.relay_process import RelayProcess
from tests.support.stopped_lanes import set_aside
from tests.support.waiting import wait_until

# Next to the tests that kill servers, with a stack of its own.
pytestmark = pytest.mark.xdist_group("history crashes")

SESSIONS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'outbox history'
"""
KILL = """
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
    WHERE datname = current_database() AND application_name = 'outbox history'
"""
ALL = ["attached", "attached", "attached"]
GONE = ["gone", "gone", "gone"]


@pytest.fixture
def database(private_database: str) -> str:
    """On servers of this process: a transaction that runs anywhere in a server keeps a range from being closed."""
    return private_database


@pytest.fixture
def history(database: str) -> Iterator[History]:
    """One full range of ids, published and certified."""
    history = History(database)
    history.fill(0)
    history.leave(1)
    history.publish(1)
    top = value(history.conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    history.certify(hi=top)
    yield history
    history.close()


def drop(history: History, *, older_than: str = "0s", wait: str = "30s") -> Ran:
    return outbox(
        "history", "drop", "--older-than", older_than, "--wait", wait, "--json", OUTBOX_DSN=history.dsn
    )


def states(history: History) -> list[str]:
    return [history.state(kind) for kind in ("message", "publication", "event")]


def outcome(ran: Ran) -> tuple[str, list[str], bool]:
    part = ran.json["partitions"][0]
    return part["outcome"], [reason["name"] for reason in part["reasons"]], part["restored"]


@contextmanager
def using(history: History, table_: str, mode: str = "ROW EXCLUSIVE") -> Iterator[None]:
    """A transaction that uses a table."""
    with psycopg.connect(history.dsn) as conn:
        conn.execute(f"LOCK TABLE {table_} IN {mode} MODE")
        yield
        conn.rollback()


@contextmanager
def removing(history: History) -> Iterator[RelayProcess]:
    """`outbox history drop` as a process of its own."""
    with RelayProcess(history.dsn, "", service="history", action=("drop", "--older-than", "0s")) as process:
        yield process


def reach(history: History, expected: list[str]) -> None:
    wait_until(lambda: states(history) == expected, f"the tables are {expected}")


def lost_to_the_sweep(history: History) -> list[Any]:
    """What a relay would publish again because it sees a message and not its publication."""
    snapshot = value(history.conn, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
    values = {"lowest": 1, "lowest_publication": 1, "lanes": list(range(8)), "xmax": snapshot, "xip": "{}"}
    values |= {"since_xmin": "3", "since_xmax": "3", "since_xip": "{}", "most": 100}
    rows = history.conn.execute(UPKEEP["lost"], values).fetchall()
    return [row[0] for row in rows if row[0] <= WIDTH]


def begin(history: History, stack: ExitStack, expected: list[str]) -> RelayProcess:
    """Start a run, and return when it waits for a lock with the tables in these states."""
    process = stack.enter_context(removing(history))
    reach(history, expected)
    return process


def at_the_mark(history: History, stack: ExitStack) -> RelayProcess:
    """Before the first detach has changed anything: somebody else's DDL is in the way."""
    stack.enter_context(using(history, "outbox.message", "SHARE UPDATE EXCLUSIVE"))
    return begin(history, stack, ALL)


def at_the_first_table(history: History, stack: ExitStack) -> RelayProcess:
    stack.enter_context(using(history, "outbox.message"))
    return begin(history, stack, ["pending", "attached", "attached"])


def at_the_second_table(history: History, stack: ExitStack) -> RelayProcess:
    stack.enter_context(using(history, "outbox.publication"))
    return begin(history, stack, ["detached", "pending", "attached"])


def between_the_second_and_the_third(history: History, stack: ExitStack) -> RelayProcess:
    stack.enter_context(using(history, "outbox.event", "SHARE UPDATE EXCLUSIVE"))
    return begin(history, stack, ["detached", "detached", "attached"])


def before_the_drop(history: History, stack: ExitStack) -> RelayProcess:
    """Somebody reads a table by its name, when it is detached."""
    with using(history, "outbox.event", "SHARE UPDATE EXCLUSIVE"):
        process = begin(history, stack, ["detached", "detached", "attached"])
        stack.enter_context(using(history, table("message"), "ACCESS SHARE"))
    reach(history, ["detached", "detached", "detached"])
    return process


STEPS: list[Callable[[History, ExitStack], RelayProcess]] = [
    at_the_mark,
    at_the_first_table,
    at_the_second_table,
    between_the_second_and_the_third,
    before_the_drop,
]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["process", "session"])
@pytest.mark.parametrize("ending", ["finished", "taken back"])
def test_what_a_dead_run_left_is_ended_by_the_next(
    history: History, step: Callable[[History, ExitStack], RelayProcess], how: str, ending: str
) -> None:
    with ExitStack() as stack:
        process = step(history, stack)
        waits = f"{SESSIONS} AND wait_event_type = 'Lock'"
        wait_until(lambda: value(history.conn, waits) == 1, "it waits for a lock")
        if how == "process":
            process.kill()
        history.conn.execute(KILL)
        wait_until(lambda: value(history.conn, SESSIONS) == 0, "its session has ended")
        if how == "session":
            assert process.wait() == 1
    assert lost_to_the_sweep(history) == []
    insert(history.conn, "t", "k", b"on")
    if ending == "finished":
        ran = drop(history)
        assert (ran.code, outcome(ran)) == (0, ("dropped", [], False))
        assert states(history) == GONE
    else:
        ran = drop(history, older_than="1d")
        assert (ran.code, outcome(ran)) == (0, ("kept", ["young"], step is not at_the_mark))
        assert states(history) == ALL
        assert value(history.conn, "SELECT count(*) FROM outbox.message WHERE id <= 1000") == 10
        assert value(history.conn, f"SELECT obj_description('{table('message')}'::regclass)") is None


SHAPE = """
    SELECT (SELECT array_agg(replace(pg_get_indexdef(i.indexrelid), %(suffix)s, '')
                             ORDER BY pg_get_indexdef(i.indexrelid)) FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisvalid),
           (SELECT array_agg(t.tgname ORDER BY t.tgname) FROM pg_trigger t WHERE t.tgrelid = c.oid),
           (SELECT array_agg(pg_get_constraintdef(k.oid) ORDER BY pg_get_constraintdef(k.oid)) FROM pg_constraint k
            WHERE k.conrelid = c.oid AND k.contype = 'c'),
           c.reloptions, (SELECT array_agg(a.privilege_type || a.grantee ORDER BY a.privilege_type, a.grantee)
                         FROM aclexplode(c.relacl) a)
    FROM pg_class c WHERE c.oid = %(table)s::regclass
"""


@pytest.mark.parametrize("kind", ["message", "publication", "event"])
def test_what_is_put_back_is_what_it_was(history: History, kind: str) -> None:
    def shape() -> Any:
        values = {"table": table(kind), "suffix": table(kind).removeprefix(f"outbox.{kind}")}
        return history.conn.execute(SHAPE, values).fetchone()

    before = shape()
    history.conn.execute(f"CREATE VIEW public.mine AS SELECT 1 AS one FROM {table(kind)}")
    ran = drop(history)
    assert (ran.code, outcome(ran)) == (1, ("refused", ["depended_on"], True))
    assert shape() == before
    assert states(history) == ALL


@pytest.mark.parametrize("changes", [["DEAD"], ["DEAD", "SKIPPED"], ["DEAD", "COMMITTED"]])
def test_a_row_that_changes_while_its_range_is_detached_keeps_it(
    history: History, changes: list[str]
) -> None:
    with psycopg.connect(history.dsn) as writer:
        for state in changes:
            if state == "DEAD":
                set_aside(writer, 3)
            else:
                writer.execute("UPDATE outbox.message SET state = %s WHERE id = 3", [state])
        with removing(history) as process:
            reach(history, ["pending", "attached", "attached"])
            writer.commit()
            assert process.wait() == 1
    assert states(history) == ALL
    assert value(history.conn, "SELECT state FROM outbox.message WHERE id = 3") == changes[-1]


def test_a_blocking_transaction_is_named_and_the_next_run_finishes_what_was_begun(
    history: History,
) -> None:
    with using(history, "outbox.message"):
        ran = drop(history, wait="0s")
        assert (ran.code, outcome(ran)) == (1, ("refused", ["busy"], False))
        assert "open since" in ran.json["partitions"][0]["reasons"][0]["detail"]
        assert history.state("message") == "pending"
    assert outcome(drop(history)) == ("dropped", [], False)


def test_a_reader_goes_on_over_what_is_left_when_a_table_it_names_is_dropped(history: History) -> None:
    reading = Reading(history.dsn, page=100)
    try:
        assert reading.partitions.tables[0] == table("message").removeprefix("outbox.")
        insert(history.conn, "t", "k", b"before")
        reading.read()
        assert outcome(drop(history))[0] == "dropped"
        insert(history.conn, "t", "k", b"after")
        assert len(reading.read()) == 1
        assert table("message").removeprefix("outbox.") not in reading.partitions.tables
    finally:
        reading.close()


def test_a_reader_keeps_reading_a_table_that_may_be_put_back(history: History) -> None:
    reading = Reading(history.dsn, page=100)
    name = table("message").removeprefix("outbox.")
    move = partial(
        history.conn.execute,
        f"UPDATE {table('message')} SET xid = pg_current_xact_id(), position = nextval('outbox.position') WHERE id = 1",
    )
    try:
        reading.read()
        history.conn.execute(f"ALTER TABLE outbox.message DETACH PARTITION {table('message')} CONCURRENTLY")
        reading.partitions.refresh()
        assert name in reading.partitions.tables
        move()
        assert len(reading.read()) == 1
        history.conn.execute(f"DROP TABLE {table('message')}")
        reading.partitions.refresh()
        assert name not in reading.partitions.tables
    finally:
        reading.close()


def test_a_list_of_a_reader_is_made_over_what_is_left(history: History) -> None:
    reading = Reading(history.dsn, page=2)
    try:
        history.conn.execute(f"DROP TABLE {table('message')}, {table('publication')}, {table('event')}")
        with connect(history.dsn) as conn:
            for number in range(7):
                insert(conn, "t", f"k{number}", b"")
        assert len(reading.read()) == 7
    finally:
        reading.close()
