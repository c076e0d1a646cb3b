"""`outbox group`: the registry says how half messages are asked about; nothing contradictory gets in."""

from __future__ import annotations

import pytest

from outbox_relay.database import connections
from outbox_relay.operations import groups
from outbox_relay.operations.groups import ProducerGroup, RegisteredGroup
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, decide, insert
from tests.support.publications import value


def test_the_defaults_of_a_group_that_is_not_registered_are_the_tables(
    database: str, conn: Connection
) -> None:
    conn.execute("INSERT INTO outbox.producer_group (name) VALUES ('g')")
    with connections.connect(database) as operator:
        registered = groups.find(operator, "g")
        assert registered.registered
        assert registered == RegisteredGroup(ProducerGroup("g"), registered_at=registered.registered_at)
        assert not groups.find(operator, "other").registered
    insert(conn, "orders", "k", "b", producer_group="other")
    assert "not registered: defaults" in succeed("group", "show", "other", OUTBOX_DSN=database).out


def test_a_group_is_registered_and_changed_setting_by_setting(database: str) -> None:
    first = succeed(
        "group",
        "set",
        "shop",
        "--type",
        "transaction",
        "--check-after",
        "500ms",
        "--json",
        OUTBOX_DSN=database,
    ).json
    assert (first["message_type"], first["check_after_seconds"], first["max_checks"]) == (
        "TRANSACTION",
        0.5,
        15,
    )
    options = ["--max-checks", "3", "--max-age", "2h", "--policy", "exhausted", "--workers", "8"]
    ran = succeed("group", "set", "shop", *options, "--check-interval", "1min", OUTBOX_DSN=database)
    assert ran.out.startswith("changed group shop\n")
    found = succeed("group", "show", "shop", "--json", OUTBOX_DSN=database).json
    assert (
        found
        | {
            "message_type": "TRANSACTION",
            "check_after_seconds": 0.5,
            "check_interval_seconds": 60.0,
            "max_check_interval_seconds": 600.0,
            "max_checks": 3,
            "max_age_seconds": 7200.0,
            "policy": "EXHAUSTED",
            "workers": 8,
            "callback": None,
        }
        == found
    )
    assert "is unchanged" in succeed("group", "set", "shop", OUTBOX_DSN=database).out


@pytest.mark.feature("S-77")
def test_a_groups_type_never_changes(database: str, conn: Connection) -> None:
    succeed("group", "set", "shop", "--type", "TRANSACTION", OUTBOX_DSN=database)
    succeed("group", "set", "shop", "--type", "TRANSACTION", "--workers", "2", OUTBOX_DSN=database)
    ran = outbox("group", "set", "shop", "--type", "NORMAL", "--workers", "3", OUTBOX_DSN=database)
    assert ran.code == 1
    assert "registered as TRANSACTION and cannot become NORMAL" in ran.err
    row = conn.execute("SELECT message_type, workers FROM outbox.producer_group").fetchone()
    assert row == ("TRANSACTION", 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--check-interval", "20min"], "--max-check-interval 10min is shorter than --check-interval 20min"),
        (["--max-age", "5s"], "--max-age 5s is not longer than --check-after 6s"),
        (["--check-interval", "0s"], "--check-interval 0s is out of range; allowed: 1ms to 3650d"),
        (["--check-timeout", "0s"], "--check-timeout 0s is out of range; allowed: 1ms to 3650d"),
        (["--check-after", "soon"], "'soon' is not a duration; expected a span such as"),
        (["--max-age", "5000d"], "3650d at most"),
        (["--workers", "65"], "--workers"),
        (["--max-checks", "0"], "--max-checks"),
        (["--policy", "KEEP"], "--policy"),
        (["--callback-url", "https://a/", "--callback-sql", "SELECT 1"], "contradict"),
        (["--callback-url", "https://a/", "--no-callback"], "contradict"),
        (["--callback-dsn-env", "OUTBOX_CALLBACK_DSN_SHOP"], "--callback-sql"),
        (["--callback-url", "ftp://a/"], "scheme"),
        (["--callback-url", "https://user:hidden@a/"], "password"),
        (["--callback-sql", "DELETE FROM p"], "SELECT"),
        (["--callback-sql", "SELECT 1 WHERE 'a' = %(body)s"], "%(body)s"),
    ],
)
def test_what_contradicts_itself_is_refused_and_nothing_is_stored(
    database: str, conn: Connection, options: list[str], told: str
) -> None:
    ran = outbox("group", "set", "shop", *options, OUTBOX_DSN=database)
    assert ran.code in (1, 2)
    assert told in ran.err
    assert "hidden" not in ran.err
    assert value(conn, "SELECT count(*) FROM outbox.producer_group") == 0


def test_a_callback_is_set_changed_and_removed(database: str, conn: Connection) -> None:
    callback = "SELECT callback FROM outbox.producer_group"
    succeed("group", "set", "shop", "--callback-url", "https://pay.internal/check", OUTBOX_DSN=database)
    assert value(conn, callback) == {"kind": "http", "url": "https://pay.internal/check"}
    query = "SELECT 'COMMIT' FROM p WHERE id = %(biz_id)s"
    options = [
        "--callback-sql",
        query,
        "--callback-dsn-env",
        "OUTBOX_CALLBACK_DSN_SHOP",
        "--callback-role",
        "shop_reader",
    ]
    shown = succeed("group", "set", "shop", *options, OUTBOX_DSN=database).out
    assert value(conn, callback) == {
        "kind": "sql",
        "query": query,
        "dsn_env": "OUTBOX_CALLBACK_DSN_SHOP",
        "role": "shop_reader",
    }
    assert query in shown
    assert "of $OUTBOX_CALLBACK_DSN_SHOP" in shown
    succeed("group", "set", "shop", "--workers", "2", OUTBOX_DSN=database)
    assert value(conn, callback) is not None
    succeed("group", "set", "shop", "--no-callback", OUTBOX_DSN=database)
    assert value(conn, callback) is None


def test_a_password_in_a_url_that_was_written_by_hand_is_never_shown(database: str, conn: Connection) -> None:
    insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="shop")
    conn.execute(
        "INSERT INTO outbox.producer_group (name, callback) VALUES "
        """('shop', '{"kind": "http", "url": "https://u:hidden@pay.internal/check?token=hidden"}')"""
    )
    number = str(value(conn, "SELECT id FROM outbox.message"))
    for command in (
        ["group", "ls"],
        ["group", "ls", "--json"],
        ["group", "show", "shop"],
        ["group", "show", "shop", "--json"],
        ["group", "set", "shop", "--workers", "2"],
        ["tx", "show", number],
        ["tx", "explain", number],
        ["tx", "explain", number, "--json"],
        ["tx", "check", number],
    ):
        ran = succeed(*command, OUTBOX_DSN=database)
        assert "hidden" not in ran.out + ran.err


@pytest.mark.feature("S-49")
def test_the_list_shows_who_has_work_and_which_alarms_stand(database: str, conn: Connection) -> None:
    succeed("group", "set", "calm", OUTBOX_DSN=database)
    insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="late", born_at="2026-01-01")
    message_id = insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="late")
    decide(conn, message_id, "EXHAUSTED")
    conn.execute(
        "INSERT INTO outbox.alarm (producer_group, kind, detail) VALUES ('gone', 'no_checker', 'nobody asks')"
    )
    ran = succeed("group", "ls", OUTBOX_DSN=database)
    lines = [line.split() for line in ran.out.splitlines()]
    assert [line[0] for line in lines[1:4]] == ["calm", "gone", "late"]
    assert lines[1][-4:] == ["0", "0", "0", "-"]
    assert lines[2][-1] == "no_checker"
    assert lines[3][-4:] == ["1", "1", "1", "-"]
    assert "alarm no_checker, group gone, since 20" in ran.out
    found = {one["name"]: one for one in succeed("group", "ls", "--json", OUTBOX_DSN=database).json}
    assert (found["late"]["undecided"], found["late"]["overdue"], found["late"]["exhausted"]) == (1, 1, 1)
    assert [one["kind"] for one in found["gone"]["alarms"]] == ["no_checker"]
    assert found["calm"]["registered"]
    assert not found["late"]["registered"]


def test_an_empty_registry_says_what_to_do(database: str) -> None:
    assert "outbox group set NAME" in succeed("group", "ls", OUTBOX_DSN=database).out
    assert outbox("group", "set", "", OUTBOX_DSN=database).code == 2
    assert outbox("group", "set", "x" * 256, OUTBOX_DSN=database).code == 2


def test_a_query_that_cannot_run_is_named_when_it_is_set(database: str) -> None:
    query = "SELECT state FROM payment WHERE id = %(biz_id)s"
    ran = outbox("group", "set", "payments", "--callback-sql", query, OUTBOX_DSN=database)
    assert ran.code == 0
    assert 'warning: its query cannot run: relation "payment" does not exist' in ran.err
    assert "outbox checker check" in ran.err
    ran = outbox("group", "set", "payments", "--callback-sql", "SELECT true", OUTBOX_DSN=database)
    assert "warning" not in ran.err
