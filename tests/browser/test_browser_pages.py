"""In a real browser, each page can be read by everybody, at any width, and runs nothing that a stranger wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.console_pages import PATHS, dead_letter, served
from tests.support.console_stage import links
from tests.support.held_keys import hold_key, write_key
from tests.support.outbox_command import succeed
from tests.support.plain_inserts import Connection, insert
from tests.support.publications import own_lanes, value
from tests.support.real_browser import THEMES, WIDTHS, Person

pytestmark = pytest.mark.browser
People = Callable[..., Person]

SCRIPT = "<script>attacked = 1</script><img src=//evil.example/x onerror='attacked = 1'>\"'&"
GROUP = "<script>attacked=1</script>\"'&"
FOCUSED = """(one => [one.getBoundingClientRect().top + scrollY, getComputedStyle(one).outlineStyle])(
    document.activeElement)"""
"""Where the focus is, and whether it can be seen."""
HOSTILE = f"{SCRIPT}\x1b[31m \u202e"
SHOWN = "<script>attacked"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_each_page_keeps_the_rules_of_accessibility_and_fits(
    database: str, conn: Connection, person: People, theme: str, width: int
) -> None:
    held = links(conn)["set-aside"].partition("=")[2]
    with served(database) as console:
        one, found = person(console.port, theme=theme, width=width), list[str]()
        for path in (
            *PATHS,
            f"/messages/{held}",
            "/letters?group=points",
            f"/acts/skip?id={held}",
            "/messages/99",
            "/no",
        ):
            page = one.open(path)
            found += [f"{path} {fault}" for fault in one.faults()]
            if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
                found.append(f"{path} is too wide")
            if page.locator("h1").count() != 1:
                found.append(f"{path} has not one heading")
            name = path.strip("/").replace("/", "-").partition("?")[0] or "now"
            one.picture(f"{name}-{theme}-{width}")
        assert found == []
        assert {url.partition("/")[2].split("/")[1] for url in one.loaded} == {f"127.0.0.1:{console.port}"}


def test_hostile_texts_are_shown_as_texts_and_run_nothing(
    database: str, conn: Connection, person: People
) -> None:
    own_lanes(conn)
    half = insert(conn, "orders", HOSTILE, "b", state="UNKNOWN", producer_group=GROUP, checker=GROUP)
    hold_key(conn, write_key(conn, "orders", HOSTILE), f"MESSAGE_TOO_LARGE: {HOSTILE}")
    headers = '{"X-Header": "' + SCRIPT.replace('"', '\\"') + '"}'
    insert(
        conn,
        "orders",
        SCRIPT,
        HOSTILE,
        tags=[GROUP],
        index_keys=[GROUP],
        biz_type=SCRIPT,
        biz_id=SCRIPT,
        headers=headers,
    )
    first, last = (value(conn, f"SELECT {which}(id) FROM outbox.message") for which in ("min", "max"))
    conn.execute("UPDATE outbox.message SET remark = %s WHERE message_id = %s", [SCRIPT, half])
    letter = dead_letter(conn, f"ValueError at m:f: {HOSTILE}", group=GROUP, key=HOSTILE, topic=SCRIPT)
    succeed("group", "set", GROUP, "--policy", "EXHAUSTED", OUTBOX_DSN=database)
    succeed("consumers", "pause", GROUP, "--reason", SCRIPT, OUTBOX_DSN=database)
    with served(database) as console:
        one = person(console.port)
        for path in (
            "/failing",
            "/messages",
            "/half-messages",
            "/groups",
            f"/acts/redrive?ids={letter}",
            f"/messages/{last}",
            f"/messages?q={SCRIPT.replace('&', '%26')}",
            f"/acts/commit?id={first}",
        ):
            page = one.open(path)
            assert SHOWN in page.locator("main").inner_text(), path
            assert page.evaluate("typeof attacked") == "undefined", path
        page = one.open(f"/messages/{last}")
        page.get_by_role("button", name="Show headers and body").click()
        assert page.locator("main").inner_text().count(SHOWN) >= 5, "key, tags, index keys, header and body"
        assert page.evaluate("typeof attacked") == "undefined"
        page = one.open("/failing")
        page.locator(".command", has_text="attacked").first.click()
        page.wait_for_selector(".command.copied")
        assert "\x1b" not in page.evaluate("navigator.clipboard.readText()"), "what is pasted into a terminal"
        for path in PATHS:
            assert one.open(path).evaluate("typeof attacked") == "undefined", path
        assert not [url for url in one.loaded if not url.startswith(one.address)]


def test_a_console_is_used_by_the_keyboard_alone(database: str, conn: Connection, person: People) -> None:
    links(conn)
    with served(database) as console:
        one = person(console.port)
        page = one.open("/failing")
        page.keyboard.press("Tab")
        assert page.locator(":focus").inner_text() == "Skip to the content"
        assert page.locator(":focus").bounding_box()["x"] >= 0, "it is seen while it has the focus"  # type: ignore[index, unused-ignore]
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('main').contains(document.activeElement)")
        passed: list[tuple[float, str]] = []
        while page.evaluate("document.activeElement !== document.body") and len(passed) < 100:
            passed.append(page.evaluate(FOCUSED))
            page.keyboard.press("Tab")
        assert all(style != "none" for _, style in passed), "whatever has the focus is outlined"
        assert [top for top, _ in passed] == sorted(top for top, _ in passed), "in the order of reading"
        one.press_access_key("1")
        page.wait_for_url(f"{one.address}/")
        page.locator(".command").first.focus()
        page.keyboard.press("Enter")
        page.wait_for_selector(".command.copied")
        assert page.evaluate("navigator.clipboard.readText()").startswith("outbox ")
        one.press_access_key("s")
        page.keyboard.type("customer-7")
        page.keyboard.press("Enter")
        page.wait_for_url("**/messages?q=customer-7")
