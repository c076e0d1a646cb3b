"""In a real browser, each act begins at a page, asks for a reason, shows its line, is audited, and may be refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbox_relay.console.access import SESSION_S, AccessOptions
from outbox_relay.console.acts.registry import ACTS
from tests.support.console_pages import dead_letter, served
from tests.support.console_stage import half_message, links, state
from tests.support.logins import Logins
from tests.support.plain_inserts import Connection
from tests.support.publications import value
from tests.support.real_browser import Person

pytestmark = pytest.mark.browser
People = Callable[..., Person]
LETTERS = "/letters?group=points&failure=ValueError+at+m%3Af%3A+no"
PLACES = {
    "redrive": LETTERS,
    "discard": LETTERS,
    "release": "/failing",
    "skip": "/messages/{id}",
    "set-aside": "/messages/{id}",
    "cancel": "/messages/{id}",
    "commit": "/half-messages",
    "rollback": "/half-messages",
    "check": "/half-messages",
    "pause-topic": "/topics",
    "resume-topic": "/topics",
    "pause-group": "/groups",
    "resume-group": "/groups",
}
"""Where an operator finds each act."""
TOKEN = "a-token-of-24-characters"


def place(name: str, query: str) -> str:
    """The page that leads to an act."""
    return PLACES[name].format(id=query.partition("=")[2])


@pytest.mark.feature("H-62")
def test_each_act_is_reached_from_a_page_asks_for_a_reason_and_is_done(
    database: str, conn: Connection, person: People
) -> None:
    paths = links(conn)
    assert paths.keys() == ACTS.keys() == PLACES.keys()
    with served(database) as console:
        one = person(console.port)
        for name, query in paths.items():
            one.open(place(name, query)).locator(f'a[href="/acts/{name}?{query}"]').first.click()
            assert one.page.evaluate("document.activeElement.name") == "reason", (
                "it asks for the reason at once"
            )
            line = one.page.locator("main .command").inner_text()
            assert line.startswith("outbox "), name
            before = state(conn)
            one.page.locator("button.do").click()
            assert one.page.locator("input[name=reason]:invalid").count() == 1, "not without a reason"
            assert state(conn) == before, name
            shown = one.act()
            assert one.page.locator(".good[role=status]").count() == 1, f"{name}: {shown}"
            assert state(conn) != before, name
            done = one.page.locator("main .command").inner_text()
            assert done == line.replace("TEXT", "because"), "the line that does the same, with the reason"
            assert one.faults() == [], name
    audited = conn.execute(
        "SELECT DISTINCT actor, reason FROM outbox.event WHERE reason IS NOT NULL ORDER BY 1, 2"
    ).fetchall()
    assert [row[1] for row in audited] == ["because"]
    assert audited[0][0].startswith("operator:tester (console)")


def test_a_reader_is_offered_no_act_and_the_database_refuses_a_form_of_theirs(
    conn: Connection, logins: Logins, person: People
) -> None:
    paths = links(conn)
    before = state(conn)
    with served(logins.make("outbox_reader")) as console:
        one = person(console.port)
        for name, query in paths.items():
            assert one.open(place(name, query)).locator('a[href^="/acts/"]').count() == 0, name
        one.open(f"/acts/commit?{paths['commit']}")
        assert "the database will refuse this" in one.page.locator("main").inner_text()
        shown = one.act()
        assert "GRANT outbox_operator TO" in shown
        assert one.page.get_by_role("textbox", name="Reason").input_value() == "because", (
            "what was typed is still there"
        )
        assert one.faults() == []
    assert state(conn) == before


def test_of_two_operators_on_one_row_the_second_reads_who_was_first(
    database: str, conn: Connection, person: People
) -> None:
    half, letter = half_message(conn), dead_letter(conn, "ValueError at m:f: no")
    people = AccessOptions(token=TOKEN)
    with served(database, people=people) as console:
        ada, bob = person(console.port), person(console.port)
        for one, name in ((ada, "ada"), (bob, "bob")):
            one.open(f"/acts/commit?id={half}")
            one.page.get_by_label("Token").fill(TOKEN)
            one.page.get_by_label("Your name").fill(name)
            one.page.get_by_role("button", name="Log in").click()
        bob.open(f"/acts/rollback?id={half}")
        assert "is published" in ada.act("paid") or ada.page.locator(".good[role=status]").count()
        second = bob.act("not paid")
        assert ("operator:ada (console)" in second, "it was committed at" in second, "paid" in second) == (
            True,
            True,
            True,
        )
        ada.open(f"/acts/redrive?ids={letter}")
        bob.open(f"/acts/discard?ids={letter}")
        ada.act("repaired")
        assert "left alone" in bob.act("broken")
    assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [half]) == "COMMITTED"
    assert value(conn, "SELECT state FROM outbox.inbox_parked WHERE id = %s", [letter]) == "retry"


def test_an_expired_session_asks_for_the_token_and_leads_back(
    database: str, conn: Connection, person: People
) -> None:
    half = half_message(conn)
    now = [1_800_000_000.0]
    with served(database, people=AccessOptions(token=TOKEN), clock=lambda: now[0]) as console:
        one = person(console.port)
        one.open("/failing")
        one.page.get_by_label("Token").fill("guessed-and-too-long")
        one.page.get_by_label("Your name").fill("eve")
        one.page.get_by_role("button", name="Log in").click()
        assert "that is not the token" in one.page.get_by_role("alert").inner_text()
        assert one.faults() == []
        one.page.get_by_label("Token").fill(TOKEN)
        one.page.get_by_label("Your name").fill("ada")
        one.page.get_by_role("button", name="Log in").click()
        one.page.wait_for_url("**/failing")
        form = one.context.new_page()
        form.goto(f"/acts/commit?id={half}")
        now[0] += SESSION_S + 1
        one.page.wait_for_url("**/login?to=%2Ffailing")
        form.get_by_role("textbox", name="Reason").fill("paid")
        form.locator("button.do").click()
        assert "the session has ended" in form.locator("main").inner_text()
        assert value(conn, "SELECT state FROM outbox.message WHERE id = %s", [half]) == "UNKNOWN"
        one.page.get_by_label("Token").fill(TOKEN)
        one.page.get_by_label("Your name").fill("ada")
        one.page.get_by_role("button", name="Log in").click()
        one.page.wait_for_url("**/failing")
        assert one.page.get_by_text("you are ada").count() == 1
