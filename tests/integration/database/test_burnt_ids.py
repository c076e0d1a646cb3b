"""A login that takes ids without sending uses up nobody's room, and the catalogue stays small.

USAGE of the sequence is what each INSERT needs, and lets any producer call nextval() as often as it likes. The last
partition is a reserve of so many ids that taking them lasts longer than any pause of the services that make partitions.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from outbox_relay.database.partitions_ahead import keep_ahead
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.waiting import wait_until

ENSURE = "SELECT outbox.ensure_partitions()"
BOUNDS = "SELECT lower, upper FROM outbox.partition ORDER BY lower"
BURN = "SELECT count(nextval('outbox.position')) FROM generate_series(1, %s)"
RESERVE = 1_000_000_000
OTHERS_ENDED = "the transactions end that ran when the partition was attached; those of other databases count"


def bounds(conn: Connection) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in conn.execute(BOUNDS).fetchall()]


def newest(conn: Connection) -> int:
    row = conn.execute("SELECT last_value FROM outbox.position").fetchone()
    assert row is not None
    return int(row[0])


def added(conn: Connection) -> int:
    row = conn.execute(ENSURE).fetchone()
    assert row is not None
    return int(row[0])


def go_to(conn: Connection, id_: int) -> None:
    """Let the next message have the id after this one, as if all before were used."""
    conn.execute("SELECT setval('outbox.position', %s)", [id_])


def hold(conn: Connection, lower: int, rows: int) -> None:
    """Let the statistics of a partition's table show so many rows; it needs one row to have a page."""
    conn.execute(
        "UPDATE pg_class SET reltuples = %s, relpages = 1 WHERE oid = "
        "(SELECT name FROM outbox.partition WHERE lower = %s)",
        [rows, lower],
    )


def reserves(conn: Connection) -> list[int]:
    return [lower for lower, upper in bounds(conn) if upper - lower >= RESERVE]


def test_no_send_fails_while_a_login_takes_all_ids_of_the_ordinary_partitions(
    database: str, logins: Logins
) -> None:
    stop = threading.Event()

    def send() -> int:
        sent = 0
        with logins.connect("outbox_producer") as innocent:
            while not stop.is_set() or sent < 20:
                insert(innocent, "orders", f"k{sent}", b"x")
                sent += 1
        return sent

    with connect(database) as owner, logins.connect("outbox_producer") as evil, ThreadPoolExecutor(1) as pool:
        ordinary = [upper for lower, upper in bounds(owner) if upper - lower < RESERVE]
        sender = pool.submit(send)
        try:
            evil.execute(BURN, [max(ordinary) + 1_000_000])
        finally:
            stop.set()
        assert sender.result() >= 20
        assert newest(owner) > max(ordinary)


def test_a_new_database_has_a_reserve_that_no_login_takes_before_somebody_looks(database: str) -> None:
    with connect(database) as conn:
        lower, upper = bounds(conn)[-1]
        # 3.4 million ids a second were taken by one session: 5 minutes.
        assert upper - lower == RESERVE
        assert added(conn) == 0


def test_taken_ids_make_few_partitions_and_a_larger_reserve(database: str) -> None:
    with connect(database) as conn:
        made = []
        for _ in range(6):
            go_to(conn, bounds(conn)[-1][0] + 5)  # all before was taken
            made.append(added(conn))
            assert added(conn) == 0
        assert max(made) <= 3
        widths = [upper - lower for lower, upper in bounds(conn) if upper - lower >= RESERVE]
        assert widths == sorted(widths)
        # The longer it goes on, the fewer partitions it takes: this one lasts eight hours.
        assert widths[-1] == 100 * RESERVE
        found = bounds(conn)
        assert all(upper == lower for (_, upper), (lower, _) in itertools.pairwise(found))


def test_a_reserve_that_messages_fill_is_left_for_the_next_partition(database: str) -> None:
    with connect(database) as conn:
        (reserve,) = reserves(conn)
        go_to(conn, reserve + 6_000_000)
        insert(conn, "orders", "k", b"x")
        assert added(conn) > 0
        hold(conn, reserve, 6_000_000)
        next_ = next(lower for lower, _ in bounds(conn) if lower > reserve)
        wait_until(lambda: added(conn) == 0 and newest(conn) == next_, OTHERS_ENDED)
        first = newest(conn)
        insert(conn, "orders", "k", b"x")
        row = conn.execute(
            "SELECT tableoid::regclass::text FROM outbox.message ORDER BY id DESC LIMIT 1"
        ).fetchone()
        assert row == (f"outbox.message_p{next_:015d}",)
        assert newest(conn) == first + 1
        added(conn)
        assert newest(conn) == first + 1  # once


def test_a_reserve_of_taken_ids_is_not_left(database: str) -> None:
    with connect(database) as conn:
        (reserve,) = reserves(conn)
        go_to(conn, reserve + 100_000_000)
        insert(conn, "orders", "k", b"x")
        added(conn)
        before = newest(conn)
        assert added(conn) == 0
        assert newest(conn) == before


def test_a_partition_that_a_running_transaction_may_not_know_is_not_gone_to(database: str) -> None:
    with connect(database) as conn, psycopg.connect(database) as writer:
        (reserve,) = reserves(conn)
        go_to(conn, reserve + 6_000_000)
        insert(writer, "orders", "k", b"x")
        assert added(conn) > 0
        insert(conn, "orders", "k", b"x")
        hold(conn, reserve, 6_000_000)
        before = newest(conn)
        added(conn)
        assert newest(conn) == before
        writer.commit()
        wait_until(lambda: added(conn) == 0 and newest(conn) > reserve + RESERVE - 1, OTHERS_ENDED)


def test_two_that_leave_a_reserve_at_once_give_no_id_twice(database: str) -> None:
    with connect(database) as conn:
        (reserve,) = reserves(conn)
        go_to(conn, reserve + 6_000_000)
        insert(conn, "orders", "k", b"x")
        added(conn)
        hold(conn, reserve, 6_000_000)
        next_ = next(lower for lower, _ in bounds(conn) if lower > reserve)
        barrier = threading.Barrier(4)

        def leave() -> int:
            with connect(database) as session:
                barrier.wait()
                with contextlib.suppress(psycopg.errors.LockNotAvailable):
                    session.execute(ENSURE)
                insert(session, "orders", "k", b"x")
                return newest(session)

        with ThreadPoolExecutor(4) as pool:
            for ended in [pool.submit(leave) for _ in range(4)]:
                assert ended.result() > reserve
        # Each of the four took one id, none twice: whoever was too early took it in the reserve.
        assert newest(conn) <= next_ + 4
        row = conn.execute("SELECT count(*), count(DISTINCT position) FROM outbox.message").fetchone()
        assert row == (5, 5)


def test_the_list_names_a_reserve_and_how_much_of_its_ids_were_taken_by_messages(database: str) -> None:
    with connect(database) as conn:
        found = succeed("db", "partitions", "--json", OUTBOX_DSN=database).json["partitions"]
        assert [part["place"] for part in found] == ["current", "ahead", "ahead", "reserve"]
        assert "reserve" in succeed("db", "partitions", OUTBOX_DSN=database).out
        (reserve,) = reserves(conn)
        go_to(conn, reserve + 100_000_000)
    ran = outbox("db", "check", "--json", OUTBOX_DSN=database)
    (check,) = [check for check in ran.json["checks"] if check["name"] == "ids"]
    assert check["level"] == "warning"
    assert check["found"].startswith("100,000,000 ids of the current partition were taken without a message")
    assert "outbox_producer" in check["repair"]


def test_the_services_log_that_ids_are_taken_without_messages(
    database: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(database) as conn:
        keep_ahead(conn)
        go_to(conn, reserves(conn)[0] + 4_000_000)
        keep_ahead(conn)
        assert "ids are taken" not in caplog.text
        go_to(conn, reserves(conn)[0] + 5_000_000)
        keep_ahead(conn)
    assert "ids are taken without messages" in caplog.text


def test_ids_that_passed_the_last_partition_take_one_partition(database: str) -> None:
    with connect(database) as conn:
        last = bounds(conn)[-1][1]
        go_to(conn, last + 1_000_000_000)
        assert added(conn) <= 4
        insert(conn, "orders", "k", b"x")
