"""Each page of the console shows what the commands show, escapes what strangers wrote, and outlives its database."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from outbox_local.stack.api import Stack
from outbox_relay.console import pages
from outbox_relay.operations.actor import os_user
from tests.support.console_pages import PATHS, Browser, dead_letter, served
from tests.support.held_keys import hold_key, write_key
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection, connect, insert
from tests.support.publications import own_lanes, positions, record, snapshot
from tests.support.waiting import wait_until

NAME = "<script>alert('x')</script>\"'&"
HOSTILE = f"{NAME}\x1b[31m \u202e"


def numbered(conn: Connection, message_id: str) -> int:
    """The id of a message."""
    [(id_,)] = conn.execute("SELECT id FROM outbox.message WHERE message_id = %s", [message_id]).fetchall()
    return int(id_)


def test_hostile_texts_are_shown_and_do_nothing(database: str, conn: Connection, browser: Browser) -> None:
    topic = "orders"
    half = insert(conn, topic, HOSTILE, "b", state="UNKNOWN", producer_group=NAME, checker=NAME)
    hold_key(conn, write_key(conn, topic, HOSTILE), f"MESSAGE_TOO_LARGE: {HOSTILE}")
    insert(conn, topic, HOSTILE, "b", tags=[NAME], index_keys=[NAME], biz_type=NAME, biz_id=NAME)
    letter = dead_letter(conn, f"ValueError at m:f: {HOSTILE}", group=NAME, key=HOSTILE)
    succeed("group", "set", NAME, "--policy", "EXHAUSTED", OUTBOX_DSN=database)
    succeed("consumers", "pause", NAME, "--reason", HOSTILE, OUTBOX_DSN=database)
    paths = [
        *PATHS,
        f"/messages/{numbered(conn, half)}",
        f"/acts/rollback?id={numbered(conn, half)}",
        f"/acts/redrive?ids={letter}",
        "/messages?q=%3Cscript%3Ealert('x')",
        "/acts/pause-topic?topic=%3Cscript%3E",
        "/half-messages?state=%3Cscript%3E",
        "/letters?group=%3Cscript%3E&failure=%3Cscript%3E",
        "/%3Cscript%3E",
    ]
    for path in paths:
        text = browser.get(path).text
        assert text.count("<script") == 1, f"{path} has its own script and no other"
        assert "\x1b" not in text, path
    for path in ("/failing", "/messages", "/half-messages", "/groups", f"/acts/redrive?ids={letter}"):
        assert "&lt;script&gt;alert(" in browser.get(path).text, path


@pytest.mark.parametrize(
    "path", [*PATHS, "/static/console.js", "/nothing", "/acts/commit?id=x", "/messages/1"]
)
def test_each_response_forbids_foreign_scripts_and_frames(browser: Browser, path: str) -> None:
    headers = browser.get(path).headers
    assert "default-src 'none'; script-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


@pytest.mark.feature("H-62")
def test_now_states_each_problem_with_its_command_and_age(conn: Connection, browser: Browser) -> None:
    own_lanes(conn)
    assert "Healthy." in browser.get("/").shown
    hold_key(conn, write_key(conn, "orders", "k"), age=600)
    dead_letter(conn, "ValueError at m:f: no")
    page = browser.get("/").shown
    assert "2 problems" in page
    assert "outbox holds ls --topic orders --error MESSAGE_TOO_LARGE" in page
    assert "1 dead letter of consumer groups for 5 min" in " ".join(page.split())
    assert "outbox dlq summary" in page


def test_a_large_backlog_is_counted_in_part_the_oldest_first(
    conn: Connection, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MOST_BACKLOG", 4)
    own_lanes(conn)
    insert(conn, "orders", "published", "b")
    record(conn, positions(conn), seen=snapshot(conn), batch=1)
    insert(conn, "orders", "oldest", "b", born_at="2026-11-01T00:00Z")
    for number in range(3):
        assert "or more" not in browser.get("/").shown
        insert(conn, "orders", f"k{number}", "b")
    insert(conn, "orders", "newest", "b")
    shown = " ".join(browser.get("/").shown.split())
    assert "Backlog 4 or more; the oldest" in shown
    assert "d old" in shown.partition("or more; the oldest")[2][:16]
    assert "Of the backlog the oldest 4 are counted" in browser.get("/topics").shown


@pytest.mark.feature("H-62")
def test_what_fails_is_one_list_by_cause(conn: Connection, browser: Browser) -> None:
    own_lanes(conn)
    letter, _ = (dead_letter(conn, "ValueError at m:f: no", key=key) for key in ("a", "b"))
    insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="pay", born_at="2026-11-01T00:00Z")
    hold_key(conn, write_key(conn, "orders", "held"))
    page = browser.get("/failing")
    shown = " ".join(page.shown.split())
    assert "held 1 hold · topic orders, key held" in shown
    assert "dead 2 messages · consumer group points ValueError at m:f: no" in shown
    assert "undecided 1 half message · producer group pay" in shown
    assert f"The whole error of {letter} Traceback" in shown
    assert "/acts/redrive?group=points&amp;failure=ValueError" in page.text
    assert "secret" not in page.text, "no body"


@pytest.mark.parametrize("by", ["id", "message_id", "key", "biz_id", "index_key", "transaction_id"])
def test_a_message_is_found_by_what_a_person_has_of_it(conn: Connection, browser: Browser, by: str) -> None:
    message_id = insert(
        conn,
        "orders",
        "customer-7",
        "secret",
        biz_id="order-9",
        index_keys=["invoice-3"],
        producer_group="g",
        transaction_id="tx-5",
    )
    insert(conn, "orders", "bystander", "secret")
    id_ = numbered(conn, message_id)
    text = {
        "id": str(id_),
        "message_id": message_id,
        "key": "customer-7",
        "biz_id": "order-9",
        "index_key": "invoice-3",
        "transaction_id": "tx-5",
    }[by]
    found = browser.get(f"/messages?q={text}")
    if by in ("id", "message_id"):
        assert (found.status, found.headers["location"]) == (303, f"/messages/{id_}")
    else:
        assert f'href="/messages/{id_}"' in found.text
        assert "bystander" not in found.text
    life = browser.get(f"/messages/{id_}")
    assert "born COMMITTED" in life.shown
    assert "secret" not in life.text + found.text


def test_a_body_is_shown_by_a_form_and_to_those_who_may_read_it(
    database: str, conn: Connection, logins: Logins
) -> None:
    path = f"/messages/{numbered(conn, insert(conn, 'orders', 'k', '<b>' + 'x' * 100_000))}"
    with served(database) as console:
        browser = console.browser()
        form = browser.get(path)
        assert browser.post(path, {"csrf": "x"}).status == 403
        shown = browser.post(path, form.fields).text
        assert "&lt;b&gt;xxx" in shown
        assert "x" * 65_000 in shown
        assert "x" * 66_000 not in shown, "it is truncated"
    with served(logins.make("outbox_reader")) as console:
        browser = console.browser()
        refused = browser.post(path, browser.get(path).fields)
        assert (refused.status, "xxx" in refused.text) == (403, False)
        assert "GRANT outbox_etl" in refused.shown


def test_every_page_is_there_for_a_reader_and_offers_no_act(
    database: str, conn: Connection, logins: Logins
) -> None:
    own_lanes(conn)
    dead_letter(conn, "ValueError at m:f: no")
    insert(conn, "orders", "k", "b", state="UNKNOWN", producer_group="pay")
    succeed("topic", "ls", OUTBOX_DSN=database)
    with served(logins.make("outbox_reader")) as console:
        for path in PATHS:
            page = console.browser().get(path)
            assert page.status == 200, page.shown
            assert "/acts/" not in page.text, path
            assert "reads only (no outbox_operator)" in page.shown


def test_nothing_is_read_while_no_page_is_open_and_all_open_pages_share_a_reader(database: str) -> None:
    with served(database) as console:
        with console.open_page() as first, console.open_page() as second:
            wait_until(lambda: len(first) > 6 and len(second) > 6, "both pages were sent a content")
            begun = console.reader.loans
            contents = [sum(line == "event: content" for line in lines) for lines in (first, second)]
            wait_until(
                lambda: sum(line == "event: content" for line in second) >= contents[1] + 1, "one more came"
            )
            assert console.reader.loans - begun <= 4, "of one reader, not of one for each page"
        wait_until(lambda: not console.is_reading, "the reader rests")
        rested = console.reader.loans
        with console.open_page("topics") as third:  # an innocent page, for a while
            wait_until(lambda: "event: content" in third, "it was sent a content")
        assert console.reader.loans <= rested + 2


@pytest.mark.feature("H-62")
def test_a_page_says_that_postgresql_is_away_and_comes_back(
    private_stack: Stack, private_database: str
) -> None:
    with served(private_database) as console, console.open_page() as lines:
        browser = console.browser()
        wait_until(lambda: "event: content" in lines, "the page is live")
        private_stack.kill_postgres()
        wait_until(lambda: "event: away" in lines, "the page says so")
        away = browser.get("/failing")
        assert (away.status, "comes back by itself" in away.shown) == (503, True)
        assert 'data-live="/live/failing"' in away.text
        seen = len(lines)
        private_stack.start_postgres()
        wait_until(lambda: "event: content" in lines[seen:], "the page has come back")
        assert browser.get("/failing").status == 200


def test_a_broker_that_is_away_keeps_no_page_waiting(database: str) -> None:
    with served(database, bootstrap_servers="127.0.0.1:1") as console:
        for path in PATHS:
            assert console.browser().get(path).status == 200


def test_the_command_prints_its_address_and_ends_in_order(database: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "outbox_relay.cli.main", "console", "--port", "0", "--dsn", database],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        address = process.stdout.readline().rpartition(" ")[2].strip()
        try:
            with urllib.request.urlopen(address, timeout=60) as reply:
                assert f"you are {os_user()}" in reply.read().decode()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--host", "0.0.0.0"], "lets other machines in: give --token-file"),
        (["--identity-header", "X-User"], "--identity-header and --proxy belong together"),
        (["--host", "0.0.0.0", "--proxy", "nowhere", "--identity-header", "X"], "expected an address"),
    ],
)
def test_a_console_for_everybody_is_refused(database: str, options: list[str], text: str) -> None:
    ran = outbox("console", *options, OUTBOX_DSN=database)
    assert (ran.code, text in ran.err) == (2, True)


def test_a_token_that_can_be_guessed_is_refused(database: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("short\n")
    ran = outbox("console", "--token-file", str(file), OUTBOX_DSN=database)
    assert (ran.code, "openssl rand" in ran.err) == (2, True)


def test_a_taken_port_is_named(database: str) -> None:
    with served(database) as console:
        ran = outbox("console", "--port", str(console.port), OUTBOX_DSN=database)
    assert (ran.code, "cannot listen at 127.0.0.1" in ran.err) == (1, True)


def test_the_pages_of_a_login_without_a_role_state_the_right_that_it_lacks(
    database: str, logins: Logins
) -> None:
    with served(logins.make("outbox_producer")) as console, connect(database):
        refused = console.browser().get("/")
        assert refused.status == 403
        assert "GRANT outbox_reader TO" in refused.shown
