"""Live partitions: a new one is noticed before anything can be skipped, an old one stays while it can hold anything."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.support.bare_reader import Reading, narrow_partitions
from tests.support.plain_inserts import Connection, connect, decide, insert, insert_numbered
from tests.support.publications import positions
from tests.support.waiting import wait_until


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with connect(database) as conn:
        narrow_partitions(conn)
        yield conn


@pytest.fixture
def reading(conn: Connection, database: str) -> Iterator[Reading]:
    reading = Reading(database, page=5_000)
    yield reading
    reading.close()


def go_to(conn: Connection, position: int) -> None:
    """Let the next message have this position."""
    conn.execute("SELECT setval('outbox.position', %s, false)", [position])


def lowers(reading: Reading) -> list[int]:
    return [partition.lower for partition in reading.partitions.live]


def retire_until_gone(reading: Reading, conn: Connection, lower: int) -> None:
    """Let the relay work until this partition has left; transactions of other tests hold it up meanwhile."""

    def gone() -> bool:
        conn.execute("SELECT pg_current_xact_id()")
        reading.read()
        reading.retire()
        return lower not in lowers(reading)

    wait_until(gone, f"partition {lower} has left")


MOVE = (
    "UPDATE outbox.message SET xid = pg_current_xact_id(), position = nextval('outbox.position') WHERE id = 1"
)


def test_only_the_present_and_the_next_partition_are_named(reading: Reading, conn: Connection) -> None:
    insert_numbered(conn, "t", 10)
    reading.read()
    assert lowers(reading) == [1, 1001]
    go_to(conn, 2_000)
    insert_numbered(conn, "t", 10)
    reading.read()
    assert lowers(reading) == [1, 1001, 2001, 3001]


@pytest.mark.parametrize("jump", [995, 1_995, 2_995], ids=["into the next", "beyond the next", "two beyond"])
def test_a_transaction_that_crosses_a_bound_is_read_whole(
    reading: Reading, conn: Connection, jump: int
) -> None:
    go_to(conn, jump)
    with conn.transaction():
        for number in range(10):
            insert(conn, "t", "k", f"k:{number}")
    assert reading.read() == list(range(jump, jump + 10))


def test_a_partition_made_after_the_start_is_noticed_before_progress_passes_it(
    reading: Reading, conn: Connection
) -> None:
    go_to(conn, 3_990)
    insert_numbered(conn, "t", 5)
    assert reading.read() == list(range(3_990, 3_995))
    conn.execute("SELECT outbox.add_partition(1000)")
    go_to(conn, 4_500)
    insert_numbered(conn, "t", 5)
    assert reading.read() == list(range(4_500, 4_505))


def test_a_full_partition_leaves_when_all_that_was_open_has_ended(
    reading: Reading, conn: Connection, database: str
) -> None:
    with psycopg.connect(database) as writer:
        go_to(conn, 999)
        insert(writer, "t", "late", b"")
        go_to(conn, 1_001)
        for _ in range(4):
            insert_numbered(conn, "t", 5)
            reading.read()
            assert reading.retire() == [], "a transaction may still commit a row into it"
        writer.commit()
        assert reading.read() == [999]
        retire_until_gone(reading, conn, 1)


def test_a_partition_stays_live_for_the_newest_transaction_of_all(
    reading: Reading, conn: Connection, database: str
) -> None:
    with psycopg.connect(database) as first, psycopg.connect(database) as newest:
        go_to(conn, 999)
        first.execute("SELECT pg_current_xact_id()")
        # No transaction with a higher xid ends, so no snapshot counts this one among those that run.
        insert(newest, "t", "late", b"")
        go_to(first, 1_001)
        insert(first, "t", "beyond", b"")
        first.rollback()
        for _ in range(4):
            reading.read()
            assert reading.retire() == [], "a transaction may still commit a row into it"
        newest.commit()
        assert reading.read() == [999]
    retire_until_gone(reading, conn, 1)


@pytest.mark.parametrize("state", ["UNKNOWN", "EXHAUSTED"])
def test_a_half_message_keeps_its_partition_live_until_it_is_decided(
    reading: Reading, conn: Connection, state: str
) -> None:
    half = insert(conn, "t", "k", b"half", state="UNKNOWN", producer_group="g")
    if state == "EXHAUSTED":
        conn.execute("UPDATE outbox.message SET state = 'EXHAUSTED' WHERE message_id = %s", [half])
    go_to(conn, 2_001)
    retire_until_gone(reading, conn, 1001)
    assert lowers(reading)[0] == 1
    assert (
        conn.execute(
            "UPDATE outbox.message SET state = 'COMMITTED' WHERE message_id = %s AND state = %s",
            [half, state],
        ).rowcount
        == 1
    )
    assert reading.read() == [positions(conn)[-1]]
    retire_until_gone(reading, conn, 1)


def test_a_half_message_being_decided_while_its_partition_is_looked_at_is_not_lost(
    reading: Reading, conn: Connection, database: str
) -> None:
    half = insert(conn, "t", "k", b"half", state="UNKNOWN", producer_group="g")
    go_to(conn, 1_001)
    with psycopg.connect(database) as decider:
        assert decide(decider, half, "COMMITTED") == 1
        for _ in range(8):
            insert_numbered(conn, "t", 1)
            reading.read()
            assert reading.retire() == []
        decider.commit()
    found = reading.read()
    assert len(found) == 1
    retire_until_gone(reading, conn, 1)


def test_a_half_message_whose_insert_commits_late_keeps_its_partition_live(
    reading: Reading, conn: Connection, database: str
) -> None:
    with psycopg.connect(database) as writer:
        half = insert(writer, "t", "k", b"half", state="UNKNOWN", producer_group="g")
        go_to(conn, 1_001)
        for _ in range(8):
            insert_numbered(conn, "t", 1)
            reading.read()
            assert reading.retire() == []
        writer.commit()
    go_to(conn, 2_001)
    retire_until_gone(reading, conn, 1001)
    assert lowers(reading)[0] == 1
    assert decide(conn, half, "COMMITTED") == 1
    assert reading.read() == [positions(conn)[-1]]


def test_a_partition_does_not_leave_between_a_decision_and_its_reading(
    reading: Reading, conn: Connection
) -> None:
    half = insert(conn, "t", "k", b"half", state="UNKNOWN", producer_group="g")
    go_to(conn, 2_001)
    retire_until_gone(reading, conn, 1001)
    assert lowers(reading)[0] == 1
    assert decide(conn, half, "COMMITTED") == 1
    for _ in range(3):
        assert reading.retire() == []
    assert reading.read() == [positions(conn)[-1]]


def test_a_waiting_message_keeps_its_partition_live(reading: Reading, conn: Connection) -> None:
    insert(conn, "t", "k", b"", deliver_at="9999-01-01")
    go_to(conn, 1_001)
    for _ in range(8):
        insert_numbered(conn, "t", 1)
        reading.read()
        assert reading.retire() == []
    conn.execute("DELETE FROM outbox.waiting")
    conn.execute(MOVE)
    assert reading.read() == [positions(conn)[-1]]


def test_revived_partitions_are_all_read_again(reading: Reading, conn: Connection) -> None:
    insert_numbered(conn, "t", 1)
    go_to(conn, 1_001)
    retire_until_gone(reading, conn, 1)
    conn.execute(MOVE)
    assert reading.read() == [], "nothing brings a row of a partition that left to light, but a repair"
    reading.partitions.revive()
    conn.execute(MOVE)
    assert reading.read() == [positions(conn)[-1]]
