"""Rows of many bytes: a page counts what it brings, and a row above the bound of one comes without its fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from outbox_relay.publisher.finder import (
    BODY,
    FIELDS,
    KEY,
    ORDER_KEY,
    PAGE_BYTES,
    POSITION,
    TOPIC,
    WITHHELD,
    RawRow,
)
from outbox_relay.publisher.records import LONGEST_KEY
from outbox_relay.publisher.snapshot import BEGINNING, Snapshot
from tests.support.bare_reader import Reading
from tests.support.plain_inserts import Connection, insert
from tests.support.publications import positions

LARGE = 40_000
PAGE_OF_BYTES = 100_000
LARGE_FIELDS = {
    "body": "x" * LARGE,
    "key": "x" * LARGE,
    "order_key": "x" * LARGE,
    "headers": json.dumps({"h": "x" * LARGE}),
    "tags": ["x" * LARGE],
    "index_keys": ["x" * LARGE],
    "producer_group": "x" * LARGE,
    "transaction_id": "x" * LARGE,
    "traceparent": "x" * LARGE,
}


@pytest.fixture
def reading(database: str) -> Iterator[Reading]:
    reading = Reading(database)
    yield reading
    reading.close()


def insert_unchecked(conn: Connection, field: str) -> str:
    """Write a message with one large field; the finder does not depend on what the table refuses."""
    conn.execute("ALTER TABLE outbox.message DISABLE TRIGGER USER")
    columns = {"key": "k", "body": "", field: LARGE_FIELDS[field]}
    message_id = insert(conn, "t", **columns, lane=0)  # type: ignore[arg-type]
    conn.execute("ALTER TABLE outbox.message ENABLE TRIGGER USER")
    return message_id


def named(row: RawRow) -> SimpleNamespace:
    return SimpleNamespace(**dict(zip(FIELDS, row, strict=True)))


def bytes_of(row: RawRow) -> int:
    """The bytes of the fields that may be of any size."""
    return sum(len(field) for field in row if isinstance(field, (bytes, str)))


@pytest.mark.parametrize("floor", [None, BEGINNING], ids=["new", "all"])
@pytest.mark.parametrize("field", LARGE_FIELDS)
def test_a_page_holds_its_bytes_whatever_field_they_are_in(
    database: str, conn: Connection, field: str, floor: Snapshot | None
) -> None:
    """Compressible as they are, so that what they take on disk says nothing."""
    with closing(Reading(database, page_bytes=PAGE_OF_BYTES, floor=floor)) as reading:
        with conn.transaction():
            for _ in range(7):
                insert_unchecked(conn, field)
        pages = list(reading.pages())
    assert [row[POSITION] for rows in pages for row in rows] == positions(conn)
    assert max(sum(map(bytes_of, rows[:-1])) for rows in pages) < PAGE_OF_BYTES
    assert 3 <= len(pages) <= 7


@pytest.mark.parametrize("listed", [False, True], ids=["polled", "listed"])
@pytest.mark.parametrize("field", LARGE_FIELDS)
def test_a_row_above_the_bound_comes_without_its_fields(
    database: str, conn: Connection, field: str, listed: bool
) -> None:
    with conn.transaction():
        insert(conn, "t", "k", b"before", tags=["a"])
        # Its bytes are counted as they would be at most, so it is measured, and found to fit.
        insert(conn, "t", "k", b"fits", headers=json.dumps({"h": "x" * 20_000}))
        large = insert_unchecked(conn, field)
        insert(conn, "t", "k", b"after")
    with closing(Reading(database, page=2 if listed else 10, floor=BEGINNING)) as reading:
        reading.finder.row_bytes = reading.ahead.finder(PAGE_BYTES).row_bytes = 30_000
        raw = [row for page in reading.pages() for row in page]
    rows = [named(row) for row in raw]
    assert [row.position for row in rows] == positions(conn)
    before, fits, withheld, after = rows
    assert (before.body, before.tags, before.withheld) == (b"before", "a", None)
    assert len(fits.headers or "") > 20_000
    assert after.body == b"after"
    assert withheld.message_id == large
    assert LARGE <= (withheld.withheld or 0) <= LARGE + 200
    assert bytes_of(raw[2]) < 100


LONG = b"x" * (LONGEST_KEY + 1)


@pytest.mark.parametrize(
    ("key", "order_key", "named"),
    [
        (b"k", None, ("t", b"k", None)),
        (b"k", b"o", ("t", None, b"o")),
        (LONG, b"o", ("t", None, b"o")),
        (LONG[1:], None, ("t", LONG[1:], None)),
        (LONG, None, (None, None, None)),
        (b"k", LONG, (None, None, None)),
        (None, None, ("t", None, None)),
    ],
)
def test_of_a_row_above_the_bound_only_what_is_parked_for_it_comes(
    reading: Reading, conn: Connection, key: bytes | None, order_key: bytes | None, named: Any
) -> None:
    reading.finder.row_bytes = 30_000
    insert(conn, "t", key, b"x" * LARGE, order_key=order_key)
    ((row,),) = reading.pages()
    assert (row[TOPIC], row[KEY], row[ORDER_KEY]) == named
    assert row[BODY] is None
    assert row[WITHHELD] is not None
