"""`outbox tx ls` finds what nobody has decided, by every name it has, the oldest first."""

from __future__ import annotations

from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, decide, insert
from tests.support.publications import value

FIELDS: dict[str, Any] = {
    "tags": ["paid"],
    "index_keys": ["order-7"],
    "transaction_id": "t-7",
    "checker": "payment",
    "biz_type": "payment",
    "biz_id": "p-7",
}


def half(conn: Connection, group: str = "shop", **columns: Any) -> str:
    return insert(
        conn, columns.pop("topic", "orders"), "k", "b", state="UNKNOWN", producer_group=group, **columns
    )


def exhaust(conn: Connection, message_id: str) -> None:
    decide(conn, message_id, "EXHAUSTED")


def ls(database: str, *options: str) -> list[str]:
    """The message ids that fit, as they are listed."""
    found = succeed("tx", "ls", "--json", *options, OUTBOX_DSN=database).json
    return [one["message_id"] for one in found]


def test_what_nobody_has_decided_is_listed_the_oldest_first_over_all_groups(
    database: str, conn: Connection
) -> None:
    halves = [half(conn, group) for group in ("b", "a", "c", "a", "b")]
    exhaust(conn, halves[2])
    for state in ("COMMITTED", "ROLLED_BACK"):
        decide(conn, half(conn, "a"), state)
    insert(conn, "orders", "k", "sent", producer_group="a")
    assert ls(database) == halves
    assert ls(database, "--group", "a") == [halves[1], halves[3]]
    assert ls(database, "--state", "EXHAUSTED") == [halves[2]]
    assert ls(database, "--state", "unknown", "--group", "c") == []


@pytest.mark.feature("S-22", "S-32")
@pytest.mark.parametrize(
    "option",
    [
        ("--tag", "paid"),
        ("--index-key", "order-7"),
        ("--transaction-id", "t-7"),
        ("--checker", "payment"),
        ("--biz-type", "payment"),
        ("--biz-id", "p-7"),
        ("--topic", "parcels"),
        ("--group", "wanted"),
    ],
)
def test_a_half_message_is_found_by_each_of_its_names(
    database: str, conn: Connection, option: tuple[str, str]
) -> None:
    half(conn)
    wanted = half(conn, "wanted", topic="parcels", **FIELDS)
    half(conn)
    assert ls(database, *option) == [wanted]
    assert ls(database, *option, "--overdue") == []


@pytest.mark.feature("S-66")
@pytest.mark.parametrize("state", ["COMMITTED", "ROLLED_BACK"])
def test_history_is_found_by_the_fields_of_the_transaction(
    database: str, conn: Connection, state: str
) -> None:
    wanted = half(conn, "wanted", **FIELDS)
    decide(conn, wanted, state)
    insert(conn, "orders", "k", "b")
    for option, name in (
        ("--tag", "paid"),
        ("--biz-id", "p-7"),
        ("--biz-type", "payment"),
        ("--transaction-id", "t-7"),
        ("--checker", "payment"),
        ("--group", "wanted"),
    ):
        found = succeed("message", "ls", "--json", option, name, OUTBOX_DSN=database).json
        assert [(one["message_id"], one["state"]) for one in found] == [(wanted, state)]


def test_pages_follow_one_another(database: str, conn: Connection) -> None:
    halves = [half(conn, f"g{n % 3}") for n in range(7)]
    page = succeed("tx", "ls", "--limit", "3", OUTBOX_DSN=database)
    last = page.out.splitlines()[3].split()[0]
    assert f"there are more: --after {last}" in page.err
    assert ls(database, "--after", last) == halves[3:]


def test_overdue_is_what_no_checker_has_come_to(database: str, conn: Connection) -> None:
    old = half(conn, "late", born_at="2020-01-01")
    patient = half(conn, "late", born_at="yesterday", check_after="30 days")
    asked = half(conn, "late", born_at="2020-01-01")
    conn.execute(
        "INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at) "
        "SELECT id, message_id, producer_group, now() + interval '1 minute' FROM outbox.message WHERE message_id = %s",
        [asked],
    )
    calm = half(conn, "calm", born_at="2020-01-01")
    conn.execute(
        "INSERT INTO outbox.producer_group (name, check_after, max_age) VALUES ('calm', '3649 days', '3650 days')"
    )
    young = half(conn, "late")
    assert ls(database, "--overdue") == [old]
    assert ls(database, "--until", "1h") == [old, patient, asked, calm]
    assert ls(database, "--since", "1h") == [young]


def test_the_table_tells_checks_next_check_and_last_answer(database: str, conn: Connection) -> None:
    message_id = half(conn, **FIELDS)
    number = value(conn, "SELECT id FROM outbox.message")
    conn.execute(
        "INSERT INTO outbox.event (id, message_id, kind, answer, actor, reason) "
        "VALUES (%s, %s, 'check', 'UNKNOWN', 'checker-1', 'still charging')",
        [number, message_id],
    )
    conn.execute(
        "INSERT INTO outbox.pending_check (id, message_id, producer_group, due_at, checks, answer, remark) "
        "VALUES (%s, %s, 'shop', now() + interval '5 minutes', 1, 'UNKNOWN', 'still charging')",
        [number, message_id],
    )
    line = succeed("tx", "ls", OUTBOX_DSN=database).out.splitlines()[1]
    for part in ("shop", "orders", "payment p-7", "1 of 15", "in 4 min 5", "UNKNOWN: still charging"):
        assert part in line
    (found,) = succeed("tx", "ls", "--json", OUTBOX_DSN=database).json
    assert (found["checks"], found["max_checks"], found["last_answer"]) == (1, 15, "UNKNOWN")
    assert (found["overdue"], found["policy"]) == (False, "ROLLBACK")
    assert "body" not in found


@pytest.mark.feature("S-51")
def test_what_is_exhausted_stays_listed_until_an_operator_decides(database: str, conn: Connection) -> None:
    message_id = half(conn)
    conn.execute("UPDATE outbox.message SET state = 'EXHAUSTED', remark = 'undecided after 15 checks'")
    assert "operator decides" in succeed("tx", "ls", OUTBOX_DSN=database).out
    succeed("tx", "rollback", message_id, "--reason", "never paid", OUTBOX_DSN=database)
    ran = succeed("tx", "ls", OUTBOX_DSN=database)
    assert (ran.out, ran.err) == ("", "no half message fits\n")


def test_control_characters_never_reach_the_terminal(database: str, conn: Connection) -> None:
    message_id = half(
        conn,
        "g",
        checker="\x1b[2J",
        biz_id="\r",
        transaction_id="\x1b[1m",
        index_keys=["\x1b[31m"],
    )
    # The table refuses it today; rows from before may have it.
    conn.execute("UPDATE outbox.message SET producer_group = %s", ["\x1b]0;x\x07"])
    conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) "
        "SELECT producer_group, 'no_checker', E'\\x1b[2J' FROM outbox.message"
    )
    for command in (["ls"], ["show", message_id], ["explain", message_id], ["check", message_id]):
        ran = succeed("tx", *command, OUTBOX_DSN=database)
        assert not set(ran.out + ran.err) & {"\x1b", "\x07", "\r"}
    ran = succeed("group", "ls", OUTBOX_DSN=database)
    assert not set(ran.out + ran.err) & {"\x1b", "\x07", "\r"}


def test_the_reader_role_may_look_and_not_decide(database: str, conn: Connection) -> None:
    message_id = half(conn)
    reader = make_conninfo(database, options="-c role=outbox_reader")
    for command in (["ls"], ["ls", "--overdue"], ["show", message_id], ["explain", message_id]):
        succeed("tx", *command, OUTBOX_DSN=reader)
    for command in (["group", "ls"], ["group", "show", "shop"], ["status"]):
        succeed(*command, OUTBOX_DSN=reader)
    for command in (["check", message_id], ["commit", message_id, "--reason", "r"]):
        ran = outbox("tx", *command, OUTBOX_DSN=reader)
        assert ran.code == 1
        assert "permission denied" in ran.err


def test_a_time_that_cannot_be_read_is_refused_before_the_database_is_asked() -> None:
    for arguments in (
        ["ls", "--since", "yesterday"],
        ["show", "o-17"],
        ["explain", "o-17"],
        ["check", "o-17"],
    ):
        ran = outbox("tx", *arguments, OUTBOX_DSN="postgresql://u@127.0.0.1:1/x")
        assert ran.code == 2
        assert arguments[-1] in ran.err
