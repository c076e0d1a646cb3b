"""`outbox message send` writes one message by the library, and says what becomes of it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.outbox_command import Ran, outbox, outbox_reading, succeed
from tests.support.plain_inserts import Connection
from tests.support.publications import own_lanes

ROWS = "SELECT topic, key, body, headers, tags, state, producer_group FROM outbox.message ORDER BY id"


@pytest.fixture
def orders(conn: Connection) -> None:
    """The topic `orders`, registered."""
    conn.execute(
        "INSERT INTO outbox.topic (name, message_type, partitions, max_message_bytes) "
        "VALUES ('orders', 'MIXED', 4, 1000)"
    )


def send(database: str, *options: str, stdin: bytes | None = None) -> Ran:
    return outbox_reading(stdin, "message", "send", "orders", *options, OUTBOX_DSN=database)


@pytest.mark.usefixtures("orders")
def test_a_message_is_stored_with_what_the_options_say(database: str, conn: Connection) -> None:
    ran = send(
        database, "--key", "o-1", "--body", '{"s": "a\\\\b"}', "--header", "source=a=b", "--tag", "paid", "--tag", "eu",
        "--group", "shop",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert conn.execute(ROWS).fetchall() == [
        ("orders", b"o-1", b'{"s": "a\\\\b"}', {"source": "a=b"}, ["paid", "eu"], "COMMITTED", "shop")
    ]


@pytest.mark.usefixtures("orders")
def test_what_is_printed_names_the_next_commands(database: str, conn: Connection) -> None:
    ran = send(database, "--body", "x")
    number = conn.execute("SELECT id FROM outbox.message").fetchall()[0][0]
    assert ran.out.splitlines() == [
        f"message {number} is stored for topic orders",
        f"what becomes of it:  outbox message show {number}",
        "read it from Kafka:  outbox tail orders --from-beginning",
    ]
    assert "outbox relay run" in ran.err
    assert str(number) in succeed("message", "show", str(number), OUTBOX_DSN=database).out


@pytest.mark.usefixtures("orders")
def test_a_missing_relay_is_warned_about_and_a_running_one_is_not(database: str, conn: Connection) -> None:
    told = send(database).err
    assert "no relay has taken lanes yet: one that was just started does so within seconds" in told
    assert "to start one: outbox relay run" in told
    assert send(database, "--json").json["relay_runs"] is False
    own_lanes(conn)
    assert send(database).err == ""
    found = send(database, "--json").json
    assert found["relay_runs"] is True
    assert found.keys() == {"id", "message_id", "topic", "relay_runs"}
    assert uuid.UUID(found["message_id"]).version == 8


@pytest.mark.usefixtures("orders")
def test_a_body_comes_byte_by_byte_from_a_file_or_standard_input(
    database: str, conn: Connection, tmp_path: Path
) -> None:
    body = bytes(range(256))
    (tmp_path / "body").write_bytes(body)
    assert send(database, "--body-file", str(tmp_path / "body"), "--key", "base64:/wA=").code == 0
    assert send(database, "--body-file", "-", stdin=body).code == 0
    found = conn.execute("SELECT key, body FROM outbox.message ORDER BY id").fetchall()
    assert found == [(b"\xff\x00", body), (None, body)]


@pytest.mark.usefixtures("orders")
@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (["--body", "a", "--body-file", "b"], 2, "contradict each other"),
        (["--body-file", "/nonexistent/body"], 1, "cannot use /nonexistent/body"),
        (["--header", "novalue"], 2, "expected NAME=VALUE"),
        (["--header", "a=1", "--header", "a=2"], 2, "--header a is given twice"),
        (["--header", "outbox-id=1"], 2, "is reserved for the outbox"),
        (["--tag", ""], 2, "tags"),
        (["--key", "base64:?"], 2, "is not base64"),
        (["--body", "x" * 2_000], 2, "takes"),
    ],
)
def test_what_cannot_be_sent_is_refused_and_nothing_is_stored(
    database: str, conn: Connection, options: list[str], code: int, text: str
) -> None:
    ran = send(database, *options)
    assert ran.code == code
    assert text in ran.err
    assert conn.execute(ROWS).fetchall() == []


@pytest.mark.usefixtures("orders")
def test_a_topic_that_nobody_registered_is_refused_because_it_would_stop_a_lane(
    database: str, conn: Connection
) -> None:
    ran = outbox("message", "send", "ordres", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "topic 'ordres' is not registered. Did you mean 'orders'?" in ran.err
    assert "outbox topic create ordres" in ran.err
    assert conn.execute(ROWS).fetchall() == []


@pytest.mark.usefixtures("orders")
def test_the_producer_role_may_send_from_the_command_line(database: str, conn: Connection) -> None:
    producer = make_conninfo(database, options="-c role=outbox_producer")
    ran = outbox("message", "send", "orders", "--json", OUTBOX_DSN=producer)
    assert ran.code == 0, ran.err
    assert ran.json["relay_runs"] is None
    assert len(conn.execute(ROWS).fetchall()) == 1
