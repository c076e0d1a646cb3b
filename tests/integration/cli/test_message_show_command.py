"""`outbox message show` finds a message by what a person has of it, and shows where it is kept and what proves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import value

CERTIFIED = """
    INSERT INTO outbox.certificate (target, system_identifier, timeline, database, warehouse, held, window_lo,
        window_hi, messages, problems, checksum)
    SELECT %(target)s, 1, 1, 1, 'w', '{}', m.xid, (m.xid::text::bigint + %(more)s)::text::xid8, 1, %(problems)s, ''
    FROM outbox.message m WHERE m.message_id = %(message_id)s
"""
KNOWN = {"--key": "customer-7", "--biz-id": "order-9", "--index-key": "invoice-3"}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    """A connection to the test's database."""
    with connect(database) as made:
        yield made


def write(conn: Connection, key: str = "customer-7", *, of: str = "9", invoice: str = "3") -> str:
    """Write a message; return its message id."""
    return insert(conn, "orders", key, "b", biz_id=f"order-{of}", index_keys=[f"invoice-{invoice}"])


@pytest.mark.parametrize(("option", "text"), KNOWN.items())
def test_the_newest_message_is_found_by_what_is_known_of_it(
    database: str, conn: Connection, option: str, text: str
) -> None:
    write(conn, "bystander", of="1", invoice="1")
    only = write(conn)
    write(conn, "bystander", of="1", invoice="1")
    ran = succeed("message", "show", option, text, "--json", OUTBOX_DSN=database)
    assert (ran.json["message_id"], ran.err) == (only, "")
    newest = write(conn)
    ran = succeed("message", "show", option, text, "--json", OUTBOX_DSN=database)
    assert ran.json["message_id"] == newest
    assert f"outbox message ls {option} {text}" in ran.err, "it states that there are others"
    missing = outbox("message", "show", option, "nobody", OUTBOX_DSN=database)
    assert (missing.code, f"no message {option} nobody" in missing.err) == (1, True)


def test_a_key_of_bytes_is_found(database: str, conn: Connection) -> None:
    message_id = insert(conn, "orders", b"\xff\x00", "b")
    shown = succeed("message", "show", "--key", "base64:/wA=", "--json", OUTBOX_DSN=database).json
    assert shown["message_id"] == message_id


@pytest.mark.parametrize("given", [[], ["4711", "--key", "k"], ["--key", "k", "--biz-id", "b"]])
def test_one_message_is_named_in_one_way(database: str, given: list[str]) -> None:
    ran = outbox("message", "show", *given, OUTBOX_DSN=database)
    assert (ran.code, "by ID, --key, --biz-id or --index-key" in ran.err) == (2, True)


def test_it_shows_its_partition_and_the_newest_certificate_of_each_warehouse(
    database: str, conn: Connection, tmp_path: Path
) -> None:
    message_id = write(conn)
    partition = value(conn, "SELECT name FROM outbox.partition ORDER BY lower LIMIT 1")
    shown = succeed("message", "show", message_id, OUTBOX_DSN=database).out
    assert f"{partition}, ids 1 to " in shown
    assert "warehouse" not in shown
    for target, problems in (("bad", 2), ("good", 1), ("good", 0)):
        values = {"target": target, "problems": problems, "message_id": message_id, "more": 100}
        conn.execute(CERTIFIED, values)
    xid = value(conn, "SELECT xid::text::bigint FROM outbox.message")
    window = f"(transactions {xid} to {xid + 100})"
    page = tmp_path / "life.html"
    ran = succeed("message", "show", message_id, "--html", str(page), "--json", OUTBOX_DSN=database)
    shown = succeed("message", "show", message_id, OUTBOX_DSN=database).out
    for text in (shown, page.read_text(encoding="utf-8")):
        assert "warehouse bad: 2 problems in its window, at 2" in text
        assert "warehouse good: proven to hold it, at" in text
        assert text.count(window) == 2, "the newest of each"
        assert partition in text
    found = ran.json["history"]
    assert found["partition"]["name"] == partition
    assert [(one["target"], one["problems"]) for one in found["certificates"]] == [("bad", 2), ("good", 0)]
    other = insert(conn, "orders", "k", "b")
    conn.execute("UPDATE outbox.certificate SET window_lo = '1', window_hi = '2'")
    assert (
        succeed("message", "show", other, "--json", OUTBOX_DSN=database).json["history"]["certificates"] == []
    )
