"""Partitions are made ahead while inserts go on, whole or not at all, and each is like the first."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
import pytest

from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.waiting import wait_until

BOUNDS = "SELECT lower, upper FROM outbox.partition ORDER BY lower"
TABLES = "SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"
ADD = "SELECT outbox.add_partition(100000)"
ENSURE = "SELECT outbox.ensure_partitions()"
WAITING = "SELECT query_start FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"
PARENTS = ("message", "publication", "event")


def one(conn: Connection, statement: str, *values: Any) -> Any:
    """The first column of the first row."""
    row = conn.execute(statement, values or None).fetchone()
    assert row is not None
    return row[0]


def bounds(conn: Connection) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in conn.execute(BOUNDS).fetchall()]


def go_to(conn: Connection, id: int) -> None:
    """Let the next message have the id after this one."""
    conn.execute("SELECT setval('outbox.position', %s)", [id])


def newest(conn: Connection) -> int:
    """The newest id given out."""
    return int(one(conn, "SELECT last_value FROM outbox.position"))


def has_gone_on(conn: Connection, id: int) -> bool:
    """Whether ids beyond this one have been given out."""
    return newest(conn) > id


@contextmanager
def in_transaction(dsn: str) -> Iterator[Connection]:
    """A connection whose transaction stays open until the end of the block, and is rolled back then."""
    with psycopg.connect(dsn) as conn:
        yield conn
        conn.rollback()


def test_an_open_insert_does_not_hold_up_a_new_partition(database: str) -> None:
    with in_transaction(database) as writer, connect(database) as conn:
        insert(writer, "orders", "k", "b")
        insert(writer, "orders", "k", "b", state="UNKNOWN", producer_group="g")
        # It would wait for the writer's whole transaction, or fail after lock_timeout.
        assert one(conn, ADD).startswith("message_p")


@pytest.mark.parametrize("statement", [ADD, ENSURE])
def test_a_new_partition_that_is_not_committed_yet_holds_up_no_insert(database: str, statement: str) -> None:
    with connect(database) as conn, in_transaction(database) as ddl:
        go_to(conn, bounds(conn)[-1][0])
        conn.execute("SET lock_timeout = '1ms'")
        ddl.execute(statement)
        insert(conn, "orders", "k", "b")
        message_id = insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="g")
        conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [message_id])
        conn.execute(
            """
            INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets)
            SELECT 1, 1, position, position, '{0}', pg_current_snapshot(), ARRAY[position], '{0}', '{0}'
            FROM outbox.message LIMIT 1
            """
        )


def test_inserts_under_load_never_wait_for_new_partitions(database: str) -> None:
    stop, waits, looks = threading.Event(), [], [0]

    def write() -> int:
        written = 0
        with connect(database) as conn:
            while not stop.is_set():
                insert(conn, "orders", f"k{written}", "b")
                written += 1
        return written

    def watch(ddl: int) -> None:
        with connect(database) as conn:
            while not stop.is_set():
                waits.extend(
                    conn.execute(
                        "SELECT pid, query FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))",
                        [ddl],
                    ).fetchall()
                )
                looks[0] += 1

    with ThreadPoolExecutor() as pool, in_transaction(database) as held, connect(database) as ddl:
        insert(held, "orders", "held", "b")
        writers = [pool.submit(write) for _ in range(4)]
        watcher = pool.submit(watch, ddl.info.backend_pid)
        try:
            wait_until(partial(has_gone_on, ddl, 200), "the writers write")
            for _ in range(12):
                ddl.execute(ADD)
                wait_until(partial(has_gone_on, ddl, newest(ddl) + 20), "the writers go on")
        finally:
            stop.set()
        watcher.result()
        assert all(writer.result() > 0 for writer in writers)
    assert looks[0] > 10
    assert not waits


@pytest.mark.parametrize("table", PARENTS)
def test_a_conflicting_lock_is_waited_for_briefly_and_nothing_is_half_made(database: str, table: str) -> None:
    with connect(database) as conn, in_transaction(database) as other:
        go_to(conn, bounds(conn)[-1][0])
        before, tables = bounds(conn), one(conn, TABLES)
        other.execute(f"LOCK TABLE outbox.{table} IN SHARE UPDATE EXCLUSIVE MODE")
        begin = time.monotonic()
        ran = outbox("db", "partitions", "--ensure", "3", OUTBOX_DSN=database)
        assert time.monotonic() - begin < 10
        assert ran.code == 1
        assert "Nothing was changed" in ran.err
        assert "try again: outbox db partitions --ensure 3" in ran.err
        assert (bounds(conn), one(conn, TABLES)) == (before, tables)
        other.rollback()
        assert succeed("db", "partitions", "--ensure", "3", "--json", OUTBOX_DSN=database).json["added"] == 3


def test_a_lock_of_a_moment_is_waited_out_by_the_command(database: str) -> None:
    with connect(database) as conn, in_transaction(database) as other, ThreadPoolExecutor(1) as pool:
        go_to(conn, bounds(conn)[-1][0])
        other.execute("LOCK TABLE outbox.partition_lock IN SHARE UPDATE EXCLUSIVE MODE")
        ran = pool.submit(succeed, "db", "partitions", "--ensure", "3", "--json", OUTBOX_DSN=database)
        # The command has given up its first try and is waiting again: what relay or checker may do to it.
        tries: set[Any] = set()

        def is_tried_again() -> bool:
            tries.update(row[0] for row in conn.execute(WAITING, [other.info.backend_pid]))
            return len(tries) >= 2

        wait_until(is_tried_again, "a second try")
        other.rollback()
        assert ran.result().json["added"] == 3


def test_many_callers_at_once_make_each_partition_once(database: str, make_database: Any) -> None:
    alone = make_database()
    for dsn in (database, alone):
        with connect(dsn) as conn:
            go_to(conn, bounds(conn)[-1][0] + 10)
    with connect(alone) as conn:
        assert one(conn, ENSURE) == 3  # two, and a reserve
        expected = bounds(conn)
    barrier = threading.Barrier(6)

    def ensure() -> int:
        with connect(database) as conn:
            barrier.wait()
            try:
                return int(one(conn, ENSURE))
            except psycopg.errors.LockNotAvailable:
                return (
                    0  # the first one took longer than the others wait; the partitions are there all the same
                )

    with ThreadPoolExecutor(6) as pool:
        added = [future.result() for future in [pool.submit(ensure) for _ in range(6)]]
    with connect(database) as conn:
        assert bounds(conn) == expected
    assert sum(added) == 3


def test_partitions_leave_no_gap_and_nothing_is_made_when_there_are_enough(database: str) -> None:
    with connect(database) as conn:
        conn.execute(ADD)
        found = bounds(conn)
        assert found[0][0] == 1
        assert all(upper == lower for (_, upper), (lower, _) in itertools.pairwise(found))
        assert one(conn, ENSURE) == 0
        assert bounds(conn) == found


SHAPE = """
    SELECT pg_catalog.jsonb_build_object(
        'indexes', (SELECT jsonb_agg(x ORDER BY x) FROM (
            SELECT replace(pg_get_indexdef(i.indexrelid), %(suffix)s, '') AS x
            FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid) s),
        'parents', (SELECT count(*) FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indexrelid
                    WHERE i.indrelid = c.oid),
        'triggers', (SELECT jsonb_agg(t.tgname ORDER BY t.tgname) FROM pg_trigger t
                     WHERE t.tgrelid = c.oid AND t.tgenabled = 'A'),
        'columns', (SELECT jsonb_agg(jsonb_build_array(a.attname, a.atttypid, a.attnotnull, a.attstorage,
                        (SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                         WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum)) ORDER BY a.attnum)
                    FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        'checks', (SELECT jsonb_agg(pg_get_constraintdef(k.oid) ORDER BY k.conname) FROM pg_constraint k
                   WHERE k.conrelid = c.oid AND k.contype = 'c'),
        'readers', (SELECT jsonb_agg(a.grantee::regrole ORDER BY a.grantee::regrole::text)
                    FROM aclexplode(c.relacl) a WHERE a.privilege_type = 'SELECT'),
        'readers of columns', (SELECT jsonb_agg(jsonb_build_array(x.grantee::regrole, a.attname)
                                                ORDER BY x.grantee::regrole::text, a.attnum)
                               FROM pg_attribute a, aclexplode(a.attacl) x
                               WHERE a.attrelid = c.oid AND x.privilege_type = 'SELECT')
    )
    FROM pg_class c WHERE c.oid = %(table)s::regclass
"""


@pytest.mark.parametrize("parent", PARENTS)
def test_a_new_partition_has_all_that_the_first_one_has(database: str, parent: str) -> None:
    with connect(database) as conn:
        conn.execute(ADD)
        suffixes = [
            row[0] for row in conn.execute("SELECT suffix FROM outbox.partition ORDER BY lower").fetchall()
        ]
        shapes = []
        for suffix in suffixes:
            values = {"table": f"outbox.{parent}_p{suffix}", "suffix": f"_p{suffix}"}
            row = conn.execute(SHAPE, values).fetchone()
            assert row is not None
            shapes.append(row[0])
        # Who may read the whole table may read a new partition by name; the first ones were there before the roles.
        assert all("outbox_relay" in shape.pop("readers") for shape in shapes)
        assert all(shape == shapes[0] for shape in shapes)
        if parent == "message":
            assert shapes[0]["triggers"] == ["message_admission", "message_caller", "message_transition"]
            assert len(shapes[0]["indexes"]) == shapes[0]["parents"] == 9


def test_a_message_is_admitted_and_decided_alike_in_a_new_partition(database: str) -> None:
    with connect(database) as conn:
        conn.execute(ADD)
        lower = bounds(conn)[-1][0]
        go_to(conn, lower)
        half = insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="g")
        conn.execute("UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s", [half])
        with pytest.raises(psycopg.errors.CheckViolation):
            insert(conn, "not a topic", "k", "b")
        table = one(conn, "SELECT tableoid::regclass::text FROM outbox.message")
        assert table == f"outbox.message_p{lower:015d}"
        assert one(conn, "SELECT count(DISTINCT tableoid) FROM outbox.event") == 1


def test_there_is_no_default_partition_so_the_oldest_can_be_detached_beside_inserts(database: str) -> None:
    with connect(database) as conn:
        # The inbox has one, for days far from today: no row of it waits for another partition to be made.
        assert one(
            conn,
            "SELECT bool_and(partdefid = 0) AND count(*) = 3 FROM pg_partitioned_table "
            "WHERE partrelid <> 'outbox.inbox'::regclass",
        )
        first = one(conn, "SELECT name::text FROM outbox.partition ORDER BY lower LIMIT 1")
        go_to(conn, bounds(conn)[1][0])
        conn.execute(f"ALTER TABLE outbox.message DETACH PARTITION {first} CONCURRENTLY")
        insert(conn, "orders", "k", "b")
        assert one(conn, ENSURE) >= 0


@pytest.mark.xdist_group("private stack")
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_missing_next_partition_raises_an_alarm_with_the_command_that_repairs_it(
    private_database: str, ahead: int
) -> None:
    with connect(private_database) as conn:
        go_to(conn, bounds(conn)[-1 - ahead][0] + 5)
    ran = outbox("db", "check", "--json", OUTBOX_DSN=private_database)
    (found,) = [check for check in ran.json["checks"] if check["name"] == "partitions"]
    assert found["level"] == ("FAILED" if ahead == 0 else "warning")
    assert ran.code == (1 if ahead == 0 else 0)
    status = succeed("status", "--json", OUTBOX_DSN=private_database).json["partitions"]
    assert (status["ahead"], status["alarm"]) == (ahead, ahead == 0)
    assert ("the next partition is missing" in succeed("status", OUTBOX_DSN=private_database).out) is (
        ahead == 0
    )
    succeed(*found["repair"].split()[1:], OUTBOX_DSN=private_database)
    assert succeed("db", "check", "--json", OUTBOX_DSN=private_database).json["ok"]


@pytest.mark.xdist_group("private stack")
def test_an_insert_beyond_the_last_partition_is_foretold(private_database: str) -> None:
    with connect(private_database) as conn:
        go_to(conn, bounds(conn)[-1][1] - 1)
        with pytest.raises(psycopg.errors.CheckViolation, match="no partition of relation"):
            insert(conn, "orders", "k", "b")
    ran = outbox("db", "check", OUTBOX_DSN=private_database)
    assert ran.code == 1
    assert "inserts fail" in ran.out


@pytest.mark.parametrize(
    ("per_day", "width", "ahead"),
    [
        (1_000, 5_000_000, 2),
        (8_000_000, 8_000_000, 8),
        (400_000_000, 20_000_000, 24),
    ],
)
def test_new_partitions_hold_about_a_day_of_the_present_rate(
    database: str, per_day: int, width: int, ahead: int
) -> None:
    with connect(database) as conn:
        # The first message of the partition before the current one tells how long its ids have lasted.
        newest = bounds(conn)[-1][0] + 4_000_000
        go_to(conn, newest)
        before = max([lower for lower, upper in bounds(conn) if upper <= newest], default=1)
        conn.execute(
            """
            INSERT INTO outbox.message (id, position, message_id, topic, born_at)
            VALUES (%(id)s, %(id)s, gen_random_uuid(), 'orders', clock_timestamp() - %(days)s * interval '1 day')
            """,
            {"id": before, "days": (newest - before) / per_day},
        )
        # As if each id were a message's.
        conn.execute(
            "UPDATE pg_class SET reltuples = 1e8, relpages = 1 "
            "WHERE oid = (SELECT name FROM outbox.partition WHERE lower = %s)",
            [before],
        )
        conn.execute(ENSURE)
        found = [(lower, upper) for lower, upper in bounds(conn) if lower > newest]
        lower, upper = found[-2]  # behind it is the reserve
        assert upper - lower == pytest.approx(width, rel=0.05)
        assert len(found) == pytest.approx(ahead, abs=1)


@pytest.mark.parametrize("call", ["ensure_partitions(0)", "ensure_partitions(61)", "add_partition(999)"])
def test_an_argument_out_of_range_is_refused_with_the_range(database: str, call: str) -> None:
    with connect(database) as conn, pytest.raises(psycopg.errors.InvalidParameterValue, match="out of range"):
        conn.execute(f"SELECT outbox.{call}")


def test_the_relays_role_makes_partitions_and_reads_them_by_name(database: str) -> None:
    with connect(database) as conn:
        conn.execute("SET ROLE outbox_relay")
        name = one(conn, ADD)
        assert one(conn, f"SELECT count(*) FROM outbox.{name}") == 0
        assert one(conn, f"SELECT count(*) FROM outbox.{name.replace('message', 'publication')}") == 0
        conn.execute("SET ROLE outbox_producer")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute(ADD)


def test_the_list_shows_bounds_rows_size_and_how_long_they_last(database: str) -> None:
    with connect(database) as conn:
        insert(conn, "orders", "k", "b")
    found = succeed("db", "partitions", "--json", OUTBOX_DSN=database).json
    assert [part["place"] for part in found["partitions"]] == ["current", "ahead", "ahead", "reserve"]
    assert found["partitions"][0]["lower"] == 1
    assert found["partitions"][0]["size"] > 0
    assert found["ids_left"] == found["partitions"][-1]["upper"] - 2
    shown = succeed("db", "partitions", OUTBOX_DSN=database).out
    assert shown.splitlines()[0].split()[0] == "PLACE"
    assert "5,000,001" in shown


def test_no_lock_that_a_producer_can_take_keeps_partitions_from_being_made(database: str) -> None:
    with psycopg.connect(database) as producer, psycopg.connect(database, autocommit=True) as owner:
        producer.execute("SET ROLE outbox_producer")
        producer.execute(
            "SELECT pg_advisory_xact_lock(pg_catalog.hashtextextended('outbox.add_partition', 0))"
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege), producer.transaction():
            producer.execute("LOCK TABLE outbox.partition_lock IN ACCESS SHARE MODE")
        assert owner.execute("SELECT outbox.add_partition(1000)").fetchone() is not None
