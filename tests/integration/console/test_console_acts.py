"""What an operator does in the console is what the commands do: with a reason, audited, refused to who may not."""

from __future__ import annotations

import ipaddress
import logging
import shlex

import pytest

from outbox_relay.console.access import SESSION_S, AccessOptions
from outbox_relay.console.acts.registry import ACTS
from tests.support.console_pages import Browser, dead_letter, served
from tests.support.console_stage import half_message, links, state
from tests.support.logins import Logins
from tests.support.outbox_command import outbox, succeed
from tests.support.plain_inserts import Connection
from tests.support.publications import value

TOKEN = "a-token-of-24-characters"
EVENT = """
    SELECT to_state, actor, reason FROM outbox.event WHERE id = %s AND kind = 'transition'
    ORDER BY happened_at DESC LIMIT 1
"""


@pytest.mark.feature("H-62")
def test_each_act_does_what_its_command_does(conn: Connection, browser: Browser) -> None:
    paths = links(conn)
    assert paths.keys() == ACTS.keys()
    for name, query in paths.items():
        before = state(conn)
        done = browser.act(f"/acts/{name}?{query}", "because")
        assert done.status == 200, f"{name}: {done.shown}"
        assert state(conn) != before, name
        assert "outbox " in done.shown
    for name, to_state in (("commit", "COMMITTED"), ("rollback", "ROLLED_BACK"), ("set-aside", "DEAD")):
        id_ = int(paths[name].partition("=")[2])
        found = conn.execute(EVENT, [id_]).fetchone()
        assert found is not None
        assert (found[0], found[2]) == (to_state, "because"), name
        assert found[1].startswith("operator:tester (console)"), "the audit names who did it"
    assert value(conn, "SELECT count(*) FROM outbox.consumer_pause WHERE reason = 'because'") == 1


def test_an_act_of_a_cause_takes_what_was_shown_and_leaves_what_failed_since(
    conn: Connection, browser: Browser
) -> None:
    letters = [dead_letter(conn, "ValueError at m:f: no", key=str(n)) for n in range(4)]
    bystander = dead_letter(conn, "KeyError at m:f: no", key="other")
    path = "/acts/redrive?group=points&failure=ValueError+at+m%3Af%3A+no"
    form = browser.get(path)
    assert "4 dead letters of consumer group points" in form.shown
    conn.execute("UPDATE outbox.inbox_parked SET failed_at = now() + '1 hour' WHERE id = %s", [letters[0]])
    done = browser.post("/acts/redrive", {**form.fields, "reason": "repaired"})
    assert "3 dead letters tried again" in done.shown
    left = conn.execute("SELECT id FROM outbox.inbox_parked WHERE state = 'dead' ORDER BY id").fetchall()
    assert left == [(letters[0],), (bystander,)]


def test_of_two_operators_on_one_row_the_second_is_told_who_was_first(
    conn: Connection, browser: Browser
) -> None:
    half, letter = half_message(conn), dead_letter(conn, "ValueError at m:f: no")
    other = Browser(browser.port)
    mine = browser.get(f"/acts/commit?id={half}")
    theirs = other.get(f"/acts/rollback?id={half}")
    assert browser.post("/acts/commit", {**mine.fields, "reason": "paid"}).status == 200
    second = other.post("/acts/rollback", {**theirs.fields, "reason": "not paid"})
    assert (second.status, "it was committed at" in second.shown, "paid" in second.shown) == (409, True, True)
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [half]) == "COMMITTED"
    mine, theirs = browser.get(f"/acts/redrive?ids={letter}"), other.get(f"/acts/discard?ids={letter}")
    assert browser.post("/acts/redrive", {**mine.fields, "reason": "r"}).status == 200
    second = other.post("/acts/discard", {**theirs.fields, "reason": "r"})
    assert (second.status, "left alone" in second.shown) == (409, True)
    assert value(conn, "SELECT state FROM outbox.inbox_parked WHERE id = %s", [letter]) == "retry"


def test_an_act_of_another_site_or_without_its_form_is_refused(conn: Connection, browser: Browser) -> None:
    paths, other = links(conn), Browser(browser.port)
    other.get("/")
    before = state(conn)
    for name, query in paths.items():
        form = browser.get(f"/acts/{name}?{query}").fields | {"reason": "r"}
        foreign = {"Origin": "http://evil.example"}
        for sent, headers, of in (
            ({**form, "csrf": ""}, {}, browser),
            (form, {}, other),
            (form, foreign, browser),
            (form, {"Sec_Fetch_Site": "cross-site"}, browser),
            (form, {"Host": "evil.example"}, browser),
            (form, {"Content_Type": "text/plain"}, browser),
        ):
            refused = of.post(f"/acts/{name}", sent, **headers)
            assert refused.status in (403, 415, 421), f"{name}: {refused.status} {refused.shown}"
    assert state(conn) == before, "nothing was changed"


@pytest.mark.parametrize("reason", ["", "  ", "x" * 501])
def test_an_act_without_a_reason_is_refused(conn: Connection, browser: Browser, reason: str) -> None:
    half = half_message(conn)
    refused = browser.act(f"/acts/commit?id={half}", reason)
    assert (refused.status, "--reason" in refused.shown) == (409, True)
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [half]) == "UNKNOWN"


@pytest.mark.feature("H-62")
def test_the_database_refuses_the_acts_of_a_login_that_only_reads(conn: Connection, logins: Logins) -> None:
    paths = links(conn)
    before = state(conn)
    with served(logins.make("outbox_reader")) as console:
        browser = console.browser()
        for name, query in paths.items():
            refused = browser.act(f"/acts/{name}?{query}")
            if not name.startswith("resume"):  # (they find nothing to end)
                assert refused.status in (403, 409), f"{name}: {refused.shown}"
                assert "GRANT outbox_operator TO" in refused.shown, name
    assert state(conn) == before


def test_an_operator_of_the_database_may_act(conn: Connection, logins: Logins) -> None:
    paths = links(conn)
    with served(logins.make("outbox_operator")) as console:
        for name, query in paths.items():
            done = console.browser().act(f"/acts/{name}?{query}")
            assert done.status == 200, f"{name}: {done.shown}"


def test_a_console_that_is_read_only_acts_for_nobody(database: str, conn: Connection) -> None:
    paths = links(conn)
    before = state(conn)
    with served(database, is_read_only=True) as console:
        browser = console.browser()
        csrf = browser.get(f"/messages/{paths['commit'].partition('=')[2]}").fields["csrf"]
        for name, query in paths.items():
            assert browser.get(f"/acts/{name}?{query}").status == 403
            given = dict([query.split("=")]) | {"csrf": csrf, "reason": "r"}
            assert browser.post(f"/acts/{name}", given).status == 403
        assert "/acts/" not in browser.get("/failing").text
    assert state(conn) == before


def test_people_log_in_by_the_token_and_the_audit_has_their_names(database: str, conn: Connection) -> None:
    half = half_message(conn)
    now = [1_800_000_000.0]
    with served(database, people=AccessOptions(token=TOKEN), clock=lambda: now[0]) as console:
        browser = console.browser()
        entry = browser.get(f"/acts/commit?id={half}")
        assert (entry.status, "/login?to=%2Facts%2Fcommit%3Fid" in entry.headers["location"]) == (303, True)
        assert browser.get("/live/now").status == 401
        assert browser.post("/acts/commit", {"id": half, "reason": "r"}).status == 401
        assert browser.post("/login", {"token": "guessed", "name": "eve"}).status == 403
        foreign = browser.post("/login", {"token": TOKEN, "name": "eve"}, Origin="http://evil.example")
        assert (foreign.status, browser.cookies) == (403, {})
        entered = browser.post(entry.headers["location"], {"token": TOKEN, "name": "ada"})
        assert (entered.status, entered.headers["location"]) == (303, f"/acts/commit?id={half}")
        assert "HttpOnly; SameSite=Strict" in entered.headers["set-cookie"]
        assert browser.act(f"/acts/commit?id={half}").status == 200
        assert value(conn, EVENT.replace("to_state, ", ""), [half]).startswith("operator:ada (console)")
        away = browser.post("/login?to=//evil.example", {"token": TOKEN, "name": "ada"})
        assert away.headers["location"] == "/", "to no other site"
        now[0] += SESSION_S + 1
        assert browser.get("/").status == 303, "the session has ended"


def test_only_a_named_proxy_says_who_acts(database: str, conn: Connection) -> None:
    half = half_message(conn)
    for network, status in (("127.0.0.1", 200), ("10.0.0.7", 403)):
        people = AccessOptions(identity_header="X-User", proxies=(ipaddress.ip_network(network),))
        with served(database, people=people) as console:
            assert console.browser().get("/", X_User="ada").status == status
            assert console.browser().get("/").status == 403
            if status == 200:
                browser = console.browser()
                form = browser.get(f"/acts/commit?id={half}", X_User="ada")
                sent = {**form.fields, "reason": "r"}
                other = Browser(browser.port, dict(browser.cookies))
                assert other.post("/acts/commit", sent, X_User="bob").status == 403, "another person's form"
                assert browser.post("/acts/commit", sent, X_User="ada").status == 200
    assert value(conn, EVENT.replace("to_state, ", ""), [half]).startswith("operator:ada (console)")


def test_each_act_is_logged_with_who_why_and_its_command(
    conn: Connection, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
    letter = dead_letter(conn, "ValueError at m:f: no")
    with caplog.at_level(logging.INFO, "outbox.console"):
        browser.act(f"/acts/discard?ids={letter}", "a duplicate")
    [fields] = [record.fields for record in caplog.records if record.getMessage() == "act"]  # type: ignore[attr-defined]
    assert (fields["by"], fields["reason"], fields["done"]) == ("tester", "a duplicate", True)
    assert fields["line"] == f"outbox dlq discard {letter}"


def test_the_line_of_an_act_is_taken_by_its_command(
    database: str, conn: Connection, browser: Browser
) -> None:
    for name, query in links(conn).items():
        if name.startswith("resume"):
            continue
        shown = browser.get(f"/acts/{name}?{query}").text
        line = shown.partition('aria-label="Copy: ')[2].partition('"')[0].replace("&#39;", "'")
        words = shlex.split(line)[1:]
        if name == "pause-topic":  # (there is no relay that could pause)
            assert "the registry is changed" in outbox(*words, "--timeout", "0", OUTBOX_DSN=database).err
        else:
            succeed(*words, OUTBOX_DSN=database)
