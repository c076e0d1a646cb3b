"""What people see while the job runs: what it prints, and how far Spark's stages are; all on standard error."""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Collection
from time import monotonic
from types import TracebackType
from typing import Any, Self

from rich.console import Console

from outbox_relay.text import formatting
from outbox_relay.text.masking import mask_text
from outbox_relay.warehouse.job import STAGES

SAID = "outbox-etl: "
EVERY = 10.0
"""Seconds between two lines of progress where there is no terminal to redraw."""
KEPT = 40
"""Lines of everything else that are kept, for the case that the job fails without a word."""


class ProgressDisplay:
    """Shows the job's progress; no secret in it."""

    def __init__(self, secrets: Collection[str] = (), console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._secrets = list(secrets)
        self._status = self._console.status("starting Spark")
        self._shown = monotonic()
        self._others: deque[str] = deque(maxlen=KEPT)
        self.last = ""
        """What the job said last."""

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.stop()

    def report(self, text: str) -> None:
        """Show a line of our own."""
        self._print(self.masked(text))

    def hear(self, line: str) -> None:
        """Take a line of the job's standard error."""
        if line.startswith(STAGES):
            with contextlib.suppress(ValueError):  # (Java may write into the middle of a line)
                self._stages(json.loads(line.removeprefix(STAGES)))
        elif line.startswith(SAID):
            self.last = self.masked(line.removeprefix(SAID))
            self._print(self.last)
        elif line.strip():
            self._others.append(self.masked(line))

    def masked(self, text: str) -> str:
        """Remove every password from a text."""
        return mask_text(text, self._secrets)

    @property
    def others(self) -> str:
        """The last lines that are neither the job's own nor progress: Java's, or a traceback."""
        return "\n".join(f"  {formatting.printable(line)}" for line in self._others)

    def _stages(self, stages: list[dict[str, Any]]) -> None:
        text = ", ".join(
            f"stage {each['stage']}: {each['done']} of {each['tasks']} partitions"
            + (f" ({each['failed']} failed)" if each["failed"] else "")
            for each in stages
        )
        if self._console.is_terminal:
            self._status.update(text)
        elif monotonic() - self._shown >= EVERY:
            self._print(text)

    def _print(self, text: str) -> None:
        self._shown = monotonic()
        self._console.print(formatting.printable(text), markup=False, soft_wrap=True)
