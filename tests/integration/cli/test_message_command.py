"""`outbox message` finds messages by everything they can be asked for, and tells one's whole life."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.outbox_command import Ran, outbox, succeed
from tests.support.plain_inserts import (
    Connection,
    connect,
    decide,
    insert,
    insert_numbered,
    wait_published,
)
from tests.support.publications import own_lanes, positions, record, snapshot, value
from tests.support.relay_process import RelayProcess

SECRET = "the-body-is-nobody's-business"


def ls(database: str, *options: str) -> list[str]:
    """The message ids that fit, newest first."""
    found = succeed("message", "ls", "--json", *options, OUTBOX_DSN=database).json
    return [message["message_id"] for message in found]


def publish(conn: Connection, condition: str = "state = 'COMMITTED'", *, batch: int = 1) -> None:
    """Record everything of the condition as published."""
    record(conn, positions(conn, condition), seen=snapshot(conn), batch=batch, partition=3, offset=40)


def test_without_filters_the_newest_come_first(database: str, conn: Connection) -> None:
    ids = [insert(conn, "orders", f"k{n}", "b") for n in range(5)]
    assert ls(database) == ids[::-1]
    assert ls(database, "--limit", "2") == ids[:2:-1]
    shown = succeed("message", "ls", "--limit", "2", OUTBOX_DSN=database)
    assert len(shown.out.splitlines()) == 3
    assert "there are more" in shown.err
    assert "there are more" not in succeed("message", "ls", "--limit", "5", OUTBOX_DSN=database).err


@pytest.mark.feature("S-22", "S-30", "S-31", "S-32")
def test_each_filter_finds_what_fits_and_nothing_else(database: str, conn: Connection) -> None:
    insert(conn, "other", "other", "b")
    foreign = uuid.uuid4()
    wanted = insert(
        conn,
        "orders",
        "订单-17",
        "b",
        message_id=foreign,
        tags=["created", "vip"],
        index_keys=["order-17", "customer-4"],
        state="UNKNOWN",
        producer_group="shop",
    )
    insert(conn, "other", b"\xff\x00", "b")
    number = value(conn, "SELECT id FROM outbox.message WHERE message_id = %s", [foreign])
    binary = "base64:/wA="
    for option, fits, not_ in (
        ("--id", str(number), str(number + 100)),
        ("--message-id", str(foreign), str(uuid.uuid4())),
        ("--key", "订单-17", "订单-1"),
        ("--index-key", "customer-4", "customer"),
        ("--tag", "vip", "vi"),
        ("--status", "unknown", "DEAD"),
    ):
        assert ls(database, option, fits) == [wanted], option
        assert ls(database, option, not_) == [], option
    for option, fits, not_ in (("--topic", "orders", "order"), ("--group", "shop", "shops")):
        assert ls(database, option, fits) == [wanted], option
        refused = outbox("message", "ls", option, not_, OUTBOX_DSN=database)
        assert (refused.code, f"Did you mean '{fits}'" in refused.err) == (1, True), refused.err
    assert ls(database, "--topic", "orders", "--tag", "vip", "--status", "UNKNOWN", "--key", "订单-17") == [
        wanted
    ]
    assert ls(database, "--topic", "orders", "--tag", "other") == []
    assert len(ls(database, "--key", binary)) == 1
    decide(conn, wanted, "ROLLED_BACK")
    assert ls(database, "--index-key", "order-17", "--status", "ROLLED_BACK") == [wanted]
    assert ls(database, "--id", str(number), "--status", "ROLLED_BACK") == [wanted]
    assert ls(database, "--id", str(number), "--status", "CANCELLED") == []


def test_a_message_id_made_by_the_outbox_finds_its_message(database: str, conn: Connection) -> None:
    ids = [insert(conn, "orders", "k", "b") for _ in range(3)]
    assert ls(database, "--message-id", ids[1]) == [ids[1]]
    twin = ids[1][:-1] + ("0" if ids[1][-1] != "0" else "1")
    assert ls(database, "--message-id", twin) == []


def test_times_are_spans_ago_by_the_databases_clock_or_iso_times(database: str, conn: Connection) -> None:
    old = insert(conn, "orders", "k", "b")
    conn.execute("UPDATE outbox.message SET born_at = '2020-05-01 12:00+00'")
    new = insert(conn, "orders", "k", "b")
    assert ls(database, "--since", "10m") == [new]
    assert ls(database, "--until", "10m") == [old]
    assert ls(database, "--since", "2020-05-01T12:00Z", "--until", "2020-05-01T12:01Z") == [old]
    assert ls(database, "--until", "2020-05-01T12:00Z") == []
    assert ls(database, "--since", "2020-05-01T14:00+02:00") == [new, old]


def test_committed_means_not_yet_published_and_published_what_kafka_has(
    database: str, conn: Connection
) -> None:
    own_lanes(conn)
    insert(conn, "orders", "rolled back", "b", state="UNKNOWN", producer_group="g")
    with connect(database) as late:
        late.autocommit = False
        late_id = insert(late, "orders", "late", "b")
        first = [insert(conn, "orders", f"k{n}", "b") for n in range(3)]
        publish(conn)
        assert ls(database, "--status", "PUBLISHED") == first[::-1]
        assert ls(database, "--status", "COMMITTED") == []
        late.commit()
    new = insert(conn, "parcels", "k", "b")
    waiting = insert(conn, "orders", "k", "b", deliver_at="2100-01-01")
    assert ls(database, "--status", "COMMITTED") == [waiting, new, late_id]
    assert ls(database, "--status", "COMMITTED", "--topic", "parcels") == [new]
    assert ls(database, "--status", "PUBLISHED") == first[::-1]
    assert ls(database, "--status", "PUBLISHED", "--limit", "1") == [first[-1]]
    publish(conn, f"message_id IN ('{new}', '{late_id}')", batch=2)
    assert ls(database, "--status", "COMMITTED") == [waiting]
    assert "COMMITTED delayed" in succeed("message", "ls", "--limit", "1", OUTBOX_DSN=database).out


def test_without_any_progress_committed_is_what_has_no_publication(database: str, conn: Connection) -> None:
    ids = [insert(conn, "orders", f"k{n}", "b") for n in range(4)]
    record(conn, positions(conn)[:2], seen=snapshot(conn), batch=1)
    assert ls(database, "--status", "COMMITTED") == ids[:1:-1]
    assert ls(database, "--status", "PUBLISHED") == ids[1::-1]


def test_json_has_everything_but_the_body(database: str, conn: Connection) -> None:
    own_lanes(conn)
    insert(
        conn,
        "orders",
        b"\xff\x00",
        SECRET,
        order_key="o",
        headers='{"h": "hidden"}',
        tags=["a"],
        index_keys=["i"],
    )
    publish(conn)
    (found,) = succeed("message", "ls", "--json", OUTBOX_DSN=database).json
    assert found["key"] == {"base64": "/wA="}
    assert found["order_key"] == "o"
    assert (found["status"], found["partition"], found["offset"]) == ("PUBLISHED", 3, 40)
    assert found["xid"] > 0
    assert "body" not in found
    assert "headers" not in found


def everything(database: str, message_id: str, *options: str) -> Iterator[Ran]:
    """All that the command can print about a message."""
    for arguments in (["ls"], ["ls", "--json"], ["show", message_id], ["show", message_id, "--json"]):
        yield succeed(
            "message", *arguments, *(options if arguments[0] == "show" else ()), OUTBOX_DSN=database
        )


def test_a_body_is_shown_only_when_it_is_asked_for(database: str, conn: Connection) -> None:
    message_id = insert(conn, "orders", "k", SECRET, headers='{"h": "hidden"}')
    for ran in everything(database, message_id):
        assert SECRET not in ran.out + ran.err
        assert "hidden" not in ran.out + ran.err
    shown = succeed("message", "show", message_id, "--body", OUTBOX_DSN=database).out
    assert SECRET in shown
    assert "header h: hidden" in shown
    found = succeed("message", "show", message_id, "--body", "--json", OUTBOX_DSN=database).json
    assert (found["body"], found["headers"]) == (SECRET, {"h": "hidden"})


@pytest.mark.parametrize(
    ("body", "people", "machines"),
    [
        (None, "body: none (a tombstone)", None),
        (b"\x00\xff", "base64:AP8=", {"base64": "AP8="}),
        ("你好".encode(), "你好", "你好"),
    ],
)
def test_bodies_are_shown_as_text_or_marked_base64(
    database: str, conn: Connection, body: bytes | None, people: str, machines: object
) -> None:
    message_id = insert(conn, "orders", "k", body)
    assert people in succeed("message", "show", message_id, "--body", OUTBOX_DSN=database).out
    assert (
        succeed("message", "show", message_id, "--body", "--json", OUTBOX_DSN=database).json["body"]
        == machines
    )


@pytest.mark.parametrize(
    ("headers", "people"),
    [
        ('{"n": %s}' % ("9" * 5_000), '{"n": 9999999'),
        ("[" * 5_000 + "1" + "]" * 5_000, "[[[[["),
        ("[]", "headers, which are not texts by name: []"),
        ('{"n": 7}', "header n: 7"),
    ],
)
def test_headers_that_cannot_be_read_are_shown_as_they_are(
    database: str, conn: Connection, headers: str, people: str
) -> None:
    id_ = conn.execute(
        "INSERT INTO outbox.message (topic, body, state, producer_group) VALUES ('t', 'b', 'UNKNOWN', 'g') RETURNING id"
    ).fetchone()
    assert id_ is not None
    # Past the table's own rules, as a hole in them would be.
    conn.execute("SET session_replication_role = replica")
    conn.execute("UPDATE outbox.message SET headers = %s::jsonb", [headers])
    shown = succeed("message", "show", str(id_[0]), "--body", OUTBOX_DSN=database).out
    assert people in shown
    found = succeed("message", "show", str(id_[0]), "--body", "--json", OUTBOX_DSN=database).json
    assert "headers" in found
    for words in (("tx", "show"), ("tx", "explain"), ("message", "show")):
        succeed(*words, str(id_[0]), OUTBOX_DSN=database)


@pytest.mark.feature("S-27", "S-29")
def test_show_tells_a_half_messages_whole_life(database: str, conn: Connection) -> None:
    own_lanes(conn)
    conn.execute("SET outbox.actor = 'shop-7'")
    message_id = insert(
        conn,
        "orders",
        "k",
        "b",
        state="UNKNOWN",
        producer_group="shop",
        transaction_id="tx-1",
        checker="payment",
    )
    number = value(conn, "SELECT id FROM outbox.message")
    conn.execute(
        "INSERT INTO outbox.event (id, message_id, kind, answer, actor, reason) "
        "VALUES (%s, %s, 'check', 'UNKNOWN', 'checker-1', 'no answer in 3 s')",
        [number, message_id],
    )
    conn.execute("SET outbox.actor = 'checker-1'")
    conn.execute("UPDATE outbox.message SET state = 'COMMITTED', remark = 'paid' WHERE id = %s", [number])
    publish(conn)
    publish(conn, batch=2)
    user = value(conn, "SELECT session_user")
    for identity in (message_id, str(number), message_id.upper()):
        shown = succeed("message", "show", identity, OUTBOX_DSN=database).out
        story = [
            f"born UNKNOWN by shop-7 ({user})",
            "checked by checker-1, answer UNKNOWN: no answer in 3 s",
            f"UNKNOWN → COMMITTED by checker-1 ({user}): paid",
            "published to orders, partition 3, offset 40 (epoch 1, batch 1)",
            "published again to orders, partition 3, offset 40 (epoch 1, batch 2)",
        ]
        places = [shown.index(line) for line in story]
        assert places == sorted(places)
        for line in ("status          PUBLISHED", "checker         payment", "remark          paid"):
            assert line in shown
    found = succeed("message", "show", message_id, "--json", OUTBOX_DSN=database).json
    assert [event["kind"] for event in found["events"]] == ["transition", "check", "transition"]
    assert [one["batch"] for one in found["publications"]] == [1, 2]


@pytest.mark.parametrize(
    ("before", "shown"),
    [("infinity", "9999-12-30"), ("-infinity", "1-01-02"), ("9999-12-29 UTC", "9999-12-29"), (None, None)],
)
def test_a_time_that_no_client_can_load_is_shown(
    database: str, conn: Connection, before: str | None, shown: str | None
) -> None:
    message = insert(conn, "orders", "k", "b", lane=1, deliver_before=before)
    (found,) = succeed("message", "ls", "--json", OUTBOX_DSN=database).json
    story = succeed("message", "show", message, OUTBOX_DSN=database).out
    if shown is None:
        assert found["deliver_before"] is None
        assert "deliver_before" not in story
    else:
        assert f"{shown}T" in found["deliver_before"]
        assert any(shown in line and "deliver_before" in line for line in story.splitlines())


def test_show_of_an_unknown_message_says_where_it_looked_and_how_to_look_further(database: str) -> None:
    for identity in ("4711", str(uuid.uuid4()), "00000000-1267-8a3f-9d52-0c6c5f3a8e11"):
        ran = outbox("message", "show", identity, OUTBOX_DSN=database)
        assert ran.code == 1
        assert identity in ran.err
        assert "outbox message ls" in ran.err


def test_what_cannot_be_read_is_refused_before_the_database_is_asked() -> None:
    for arguments in (["show", "o-17"], ["ls", "--since", "yesterday"], ["ls", "--message-id", "17"]):
        ran = outbox("message", *arguments, OUTBOX_DSN="postgresql://u@127.0.0.1:1/x")
        assert ran.code == 2
        assert arguments[-1] in ran.err


def test_control_characters_never_reach_the_terminal(database: str, conn: Connection) -> None:
    message_id = insert(
        conn,
        "orders",
        b"\x1b[2J",
        "\x1b[2J",
        state="UNKNOWN",
        producer_group="g",
        tags=["\x1b[31m"],
    )
    # The table refuses it today; rows from before may have it.
    conn.execute("UPDATE outbox.message SET producer_group = %s", ["\x1b]0;x\x07"])
    conn.execute("UPDATE outbox.message SET state = 'ROLLED_BACK', remark = E'\\x1b[1mbold\\r'")
    for ran in everything(database, message_id, "--body"):
        assert not set(ran.out) & {"\x1b", "\x07", "\r"}


def test_the_reader_role_sees_everything_but_bodies(database: str, conn: Connection) -> None:
    own_lanes(conn)
    message_id = insert(conn, "orders", "k", SECRET)
    half = insert(conn, "orders", "k", SECRET, state="UNKNOWN", producer_group="g")
    publish(conn)
    reader = make_conninfo(database, options="-c role=outbox_reader")
    for options in (
        ["--status", "PUBLISHED"],
        ["--status", "COMMITTED"],
        ["--status", "UNKNOWN"],
        ["--key", "k"],
    ):
        succeed("message", "ls", *options, OUTBOX_DSN=reader)
    for one in (message_id, half):
        succeed("message", "show", one, OUTBOX_DSN=reader)
    ran = outbox("message", "show", message_id, "--body", OUTBOX_DSN=reader)
    assert ran.code == 1
    assert "permission denied" in ran.err
    assert SECRET not in ran.out + ran.err


def test_what_the_real_relay_published_is_found_with_its_place(
    database: str, conn: Connection, bootstrap_servers: str, topic: str
) -> None:
    insert_numbered(conn, topic, 300)
    delayed = insert(conn, topic, "later", "b", deliver_at="2100-01-01")
    with RelayProcess(database, bootstrap_servers) as relay:
        wait_published(conn)
        found = succeed(
            "message", "ls", "--status", "PUBLISHED", "--limit", "1000", "--json", OUTBOX_DSN=database
        )
        assert len(found.json) == 300
        assert len({(one["partition"], one["offset"]) for one in found.json}) == 300
        assert ls(database, "--status", "COMMITTED") == [delayed]
        relay.stop()
    new = insert(conn, topic, "k", "b")
    assert ls(database, "--status", "COMMITTED") == [new, delayed]
