"""A real Chromium for tests, and what it says of a page: errors, foreign loads, faults of accessibility."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # installed by `make browser` only
    from playwright.sync_api import Browser, BrowserContext, Page

PICTURES = Path("build/browser")
"""Where screenshots go: for people, who look at them."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
THEMES = ("light", "dark")
WIDTHS = (1280, 400)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium: what OUTBOX_TEST_CHROMIUM names, or the system's, or Playwright's own."""
    from playwright.sync_api import sync_playwright

    found = (
        os.environ.get("OUTBOX_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    with sync_playwright() as playwright:
        # Chromium refuses its sandbox to root.
        alone = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = playwright.chromium.launch(executable_path=found, args=alone)
        try:
            yield made
        finally:
            made.close()


class Person:
    """Somebody at a console, with cookies and a clipboard of their own; whatever the browser complains about is kept.

    Args:
        browser: runs.
        port: of the console.
        theme: light or dark.
        width: of the window in CSS pixels.
    """

    def __init__(self, browser: Browser, port: int, *, theme: str = "light", width: int = 1280) -> None:
        self.address = f"http://127.0.0.1:{port}"
        self.context: BrowserContext = browser.new_context(
            color_scheme=theme,  # type: ignore[arg-type, unused-ignore]
            viewport={"width": width, "height": 900},
            base_url=self.address,
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.complaints: list[str] = []
        self.loaded: set[str] = set()
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._refuse)
        self.page.on("console", self._hear)
        self.page.on("request", lambda request: self.loaded.add(request.url))

    def open(self, path: str) -> Page:
        """Open a page of the console; a live one has had its first content when this returns."""
        self.page.goto(path)
        return self.page

    def act(self, reason: str = "because") -> Any:
        """Fill in and send the form of an act that is open; return what the page states then."""
        self.page.get_by_role("textbox", name="Reason").fill(reason)
        self.page.locator("button.do").click()
        return self.page.locator("main").inner_text()

    def press_access_key(self, key: str) -> None:
        """Press Alt and a key, as a keyboard does: Playwright's own keys lack what access keys are found by."""
        keys = self.context.new_cdp_session(self.page)
        for kind in ("keyDown", "keyUp"):
            pressed = {"type": kind, "modifiers": 1, "key": key, "text": key, "unmodifiedText": key}
            keys.send("Input.dispatchKeyEvent", pressed | {"windowsVirtualKeyCode": ord(key.upper())})
        keys.detach()

    def faults(self) -> list[str]:
        """Return what axe finds on the page that is open, by the rules of WCAG 2.2 AA and those of good practice."""
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page, options={"runOnly": {"type": "tag", "values": RULES}}).response
        return [
            f"{one['id']}: {node['html'][:200]} {node.get('failureSummary', '')}"
            for one in found["violations"]
            for node in one["nodes"]
        ]

    def picture(self, name: str, *, whole: bool = True) -> None:
        """Take a screenshot."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=PICTURES / f"{name}.png", full_page=whole)

    def close(self) -> None:
        """Close the window."""
        self.context.close()

    def _refuse(self, dialog: Any) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def _hear(self, message: Any) -> None:
        # A refused stream or page is stated as a failed load; tests that cause one look at the page.
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(message.text)
