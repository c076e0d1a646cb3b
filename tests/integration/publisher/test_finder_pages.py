"""The reader beyond one page: backlogs, lists that are cut, byte limits, and rows that change meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from types import SimpleNamespace

import psycopg
import pytest

from outbox_relay.publisher import finder as finder_module
from outbox_relay.publisher import polls as polls_module
from outbox_relay.publisher.finder import (
    BODY,
    FIELDS,
    LANE,
    RawRow,
    Slice,
)
from outbox_relay.publisher.hands import reads
from outbox_relay.publisher.snapshot import BEGINNING
from outbox_relay.publisher.upkeep import Delayed
from tests.support.bare_reader import Reading
from tests.support.plain_inserts import Connection, decide, insert, insert_numbered, keys_of_lanes
from tests.support.publications import positions, record, snapshot


@pytest.fixture
def reading(database: str) -> Iterator[Reading]:
    reading = Reading(database)
    yield reading
    reading.close()


@pytest.fixture
def small_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 25 ids instead of 50,000, so that the next part of a list is taken soon."""
    monkeypatch.setattr(polls_module, "AT_ONCE", 25)


def fall_due(conn: Connection) -> int:
    """Let the one delayed message be due now; answer its id."""
    row = conn.execute("UPDATE outbox.waiting SET due_at = clock_timestamp() RETURNING id").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("count", [9, 10, 11, 20, 21, 24, 25, 26, 49, 50, 51, 137])
def test_a_backlog_of_any_size_is_read_once_and_in_order(
    reading: Reading, conn: Connection, small_lists: None, count: int
) -> None:
    insert_numbered(conn, "t", count)
    assert reading.read() == positions(conn)


def test_rows_that_commit_while_a_backlog_is_taken_come_after_it(
    reading: Reading, conn: Connection, small_lists: None, database: str
) -> None:
    with psycopg.connect(database) as late:
        insert(late, "t", "k", b"has its position before the backlog")

        def between(turn: int) -> None:
            if turn < 4:
                insert_numbered(conn, "t", 3)
            if turn == 4:
                late.commit()

        insert_numbered(conn, "t", 60)
        backlog = positions(conn)
        found = reading.read(between)
    assert found[:60] == backlog
    assert sorted(found) == positions(conn)


def test_a_list_of_everything_leaves_out_what_is_published(
    reading: Reading, conn: Connection, small_lists: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "MOST_APART", 0)  # no topic is read apart: the rest, and so all, is one list
    insert_numbered(conn, "t", 60)
    all_ = positions(conn)
    record(conn, all_[10:30], seen=snapshot(conn), batch=1)
    reading.start(BEGINNING)
    assert reading.read() == all_[:10] + all_[30:]


@pytest.mark.parametrize("lanes", [{0}, {0, 1, 5}, {2, 4, 6}, {1, 2, 3, 7}, set(range(8))], ids=str)
def test_a_poll_finds_the_rows_of_its_lanes_only(
    reading: Reading, conn: Connection, lanes: Collection[int]
) -> None:
    before = reading.finder.here()[0]
    keys = keys_of_lanes(conn, "t", *range(8))
    for key in keys:
        insert(conn, "t", key, b"")
    reading.finder.name_partitions(reading.partitions.tables)
    found = reading.finder.poll(before, Slice(frozenset(lanes))).rows
    assert [row[LANE] for row in found] == [lane for lane in range(8) if lane in lanes]


def test_a_poll_counts_what_it_found_of_a_large_difference_by_topic(
    reading: Reading, conn: Connection
) -> None:
    before = reading.finder.here()[0]
    insert_numbered(conn, "many", 9)
    insert_numbered(conn, "few", 1)
    reading.finder.name_partitions(reading.partitions.tables)
    fits = reading.finder.poll(before, Slice(frozenset(range(8))))
    assert (len(fits.rows), fits.more, fits.found) == (10, False, {})
    insert_numbered(conn, "few", 1)
    large = reading.finder.poll(before, Slice(frozenset(range(8))))
    hashes = conn.execute("SELECT hashtext('many'), hashtext('few')").fetchone()
    assert hashes is not None
    assert (large.rows, large.more, large.found) == ([], True, {hashes[0]: 9, hashes[1]: 2})


def test_a_page_holds_its_bytes_and_one_larger_row_is_a_page(database: str, conn: Connection) -> None:
    sizes = [400, 400, 400, 5_000, 10, 10, 5_000, 5_000, 990, 20, 1]
    with closing(Reading(database, page_bytes=1_000)) as reading:
        with conn.transaction():
            for size in sizes:
                insert(conn, "t", "k", b"x" * size)
        pages = [[len(row[BODY]) for row in rows] for rows in reading.pages()]
    assert [size for page in pages for size in page] == sizes
    assert all(sum(page[:-1]) < 1_000 for page in pages), pages


@pytest.mark.parametrize("dense", [0, finder_module.DENSE], ids=["by id", "by range"])
def test_a_page_of_cancelled_rows_does_not_hide_the_rows_behind_it(
    database: str, conn: Connection, monkeypatch: pytest.MonkeyPatch, dense: int
) -> None:
    """A campaign of delayed messages is cancelled after it was listed; its bytes would fill every page.

    The small rows behind it were cut off with it, and the empty answer was taken to mean that they had gone.
    """
    monkeypatch.setattr(finder_module, "DENSE", dense)
    with closing(Reading(database, page=20, page_bytes=100)) as reading:
        with conn.transaction():
            for _ in range(30):
                insert(conn, "t", "k", b"x" * 90, deliver_at="9999-01-01")
            for number in range(10):
                insert(conn, "t", "k", f"{number}")

        def between(turn: int) -> None:
            if turn == 1:
                conn.execute("UPDATE outbox.message SET state = 'CANCELLED' WHERE deliver_at IS NOT NULL")

        assert reading.read(between) == positions(conn)


def test_rows_of_other_lanes_do_not_hide_those_that_are_listed(database: str, conn: Connection) -> None:
    """A range of ids holds rows that are not on the list; a page full of them says nothing of those that are."""
    mine, other = keys_of_lanes(conn, "t", 3, 5)
    with closing(Reading(database, page=20, page_bytes=100, lanes=[3])) as reading:
        with conn.transaction():
            for number in range(40):
                insert(conn, "t", mine if number % 2 else other, b"x" * (1 if number % 2 else 90))
        assert reading.read() == positions(conn, "lane = 3")


def named(row: RawRow) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(FIELDS, row, strict=True)))


def test_the_key_is_not_sent_twice(reading: Reading, conn: Connection) -> None:
    insert(conn, "t", "k", b"")
    insert(conn, "t", "k", b"", order_key="o")
    found = [named(row) for page in reading.pages() for row in page]
    assert [(row.key, row.order_key) for row in found] == [(b"k", None), (b"k", b"o")]


def test_a_message_released_while_its_backlog_is_read_is_read_once_at_its_new_place(
    reading: Reading, conn: Connection, small_lists: None
) -> None:
    """Its id is on the list, its row has moved on: it belongs to the next difference."""
    insert_numbered(conn, "t", 12)
    for number in range(4):
        insert(conn, "t", "k", f"{number}", deliver_at="9999-01-01" if number == 2 else None)
    insert_numbered(conn, "t", 30)
    delayed = fall_due(conn)

    def between(turn: int) -> None:
        if turn == 1:
            assert Delayed(conn).release(range(8)) == 1

    found = reading.read(between)
    assert sorted(found) == positions(conn)
    row = conn.execute("SELECT position FROM outbox.message WHERE id = %s", [delayed]).fetchone()
    assert row == (found[-1],)


def test_a_list_full_of_waiting_messages_is_passed(
    reading: Reading, conn: Connection, small_lists: None
) -> None:
    insert_numbered(conn, "t", 5)
    for number in range(60):
        insert(conn, "t", "k", f"{number}", deliver_at="9999-01-01")
    insert_numbered(conn, "t", 5)
    expected = [
        row[0]
        for row in conn.execute("SELECT position FROM outbox.message WHERE deliver_at IS NULL ORDER BY 1")
    ]
    assert reading.read() == expected


def test_cancelled_and_undecided_messages_of_a_backlog_are_left_out(
    reading: Reading, conn: Connection, small_lists: None
) -> None:
    insert_numbered(conn, "t", 40)
    half = insert(conn, "t", "k", b"", state="UNKNOWN", producer_group="g")

    def between(turn: int) -> None:
        if turn == 2:
            conn.execute(
                "INSERT INTO outbox.waiting (id, message_id, reason, due_at) "
                "SELECT id, message_id, 'delayed', 'infinity' FROM outbox.message WHERE id % 10 = 0"
            )
            conn.execute("UPDATE outbox.message SET state = 'CANCELLED' WHERE id % 10 = 0")
            decide(conn, half, "COMMITTED")

    found = reading.read(between)
    assert set(positions(conn)) <= set(found)
    assert len(found) == len(set(found))
    assert found[-1] == positions(conn)[-1], "the half message takes its place when it is committed"


def test_a_reader_with_nothing_known_reads_what_has_no_publication(
    database: str, conn: Connection, small_lists: None
) -> None:
    insert_numbered(conn, "t", 70)
    conn.execute(
        """
        INSERT INTO outbox.publication (epoch, batch, lo, hi, lanes, snapshot, positions, partitions, offsets)
        SELECT 1, 1, min(position), max(position), '{0,1,2,3,4,5,6,7}', pg_current_snapshot(),
               array_agg(position), array_agg(0), array_agg(position)
        FROM outbox.message WHERE position BETWEEN 10 AND 30
        """
    )
    with closing(Reading(database, floor=BEGINNING)) as reading:
        found = reading.read()
    assert found == [position for position in positions(conn) if not 10 <= position <= 30]


def read_by_the_finders_index(conn: Connection) -> int:
    """How many entries of the finder's indexes the session has read, by PostgreSQL's count."""
    row = conn.execute("SELECT pg_stat_force_next_flush(), pg_sleep(0)").fetchone()
    assert row is not None
    row = conn.execute(
        "SELECT sum(idx_tup_read) FROM pg_stat_user_indexes s JOIN pg_index i USING (indexrelid) "
        "WHERE s.relname LIKE 'message_p%' AND pg_get_indexdef(s.indexrelid) LIKE '%(xid, lane%'"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("progress", ["known", "none"])
def test_a_backlog_is_listed_once_however_large_it_is(
    reading: Reading, conn: Connection, small_lists: None, progress: str
) -> None:
    """A list in parts that each read all that is left would read 16 times the backlog here."""
    insert_numbered(conn, "t", 800)
    if progress == "none":
        reading.start(BEGINNING)
    before = read_by_the_finders_index(reading.conn)
    assert reading.read() == positions(conn)
    # One poll or none finds out that it is large; the list; the polls at the end.
    assert read_by_the_finders_index(reading.conn) - before <= 2 * 800 + 100
    assert reading.conn.execute("SELECT count(*) FROM pg_cursors").fetchone() == (0,), "no list is left open"
