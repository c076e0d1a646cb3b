"""The console next to a performance: an operator's pages for a browser, if the extra `console` is installed."""

from __future__ import annotations

import re
from collections.abc import Callable

from outbox_relay.cli.console.commands import missing
from outbox_relay.proving.children import ChildError, Children


class Pages:
    """Serves the console until the performance ends, and announces its address once. Nothing depends on it.

    Args:
        children: of the performance.
        tell: prints a line.
        options: further ones of `outbox console`.
    """

    def __init__(self, children: Children, tell: Callable[[str], None], *options: str) -> None:
        self._tell = tell
        words = ("console", "--port", "0", *options)
        self._console = (
            None if missing() else children.start("console", "-m", "outbox_relay.cli.main", *words)
        )

    def announce(self) -> None:
        """Print the address as soon as it is there; called again and again."""
        if self._console is None:
            return
        try:
            found = re.search(r"http://\S+", self._console.text)
            if found is None and self._console.running:
                return
        except ChildError as error:
            self._tell(f"without the console: {error}")
        else:
            if found is not None:
                self._tell(f"what an operator sees of it: {found[0]}")
        self._console = None
