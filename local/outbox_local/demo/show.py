"""What is seen while a demo runs: a progress bar at a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from outbox_local.demo.performance import Audience
from outbox_local.demo.piece import Watch

LINE_EVERY_S = 5.0
DRAW_EVERY_S = 0.2


class Show(Audience):
    """Shows how far a performance is, on a console."""

    def __init__(self, console: Console, flights: int) -> None:
        self._console, self._flights = console, flights
        self._next = 0.0
        # Drawn by us and by no thread: the demo starts processes meanwhile.
        self._progress = Progress(
            TextColumn("{task.description:<9}"),
            BarColumn(bar_width=40),
            TextColumn("{task.completed:>9,.0f} {task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
            transient=True,
            disable=not console.is_terminal,
        )
        self._written = self._progress.add_task("written", total=flights, note="")
        self._arrived = self._progress.add_task("consumed", total=flights, note="")

    def look(self, watch: Watch) -> None:
        """Draw, or print a line, now and then."""
        now = time.monotonic()
        if now < self._next:
            return
        if self._console.is_terminal:
            self._next = now + DRAW_EVERY_S
            rolled_back = watch.ended - watch.committed
            self._progress.update(
                self._written, completed=watch.ended, note=f"({rolled_back:,} of them rolled back)"
            )
            self._progress.update(self._arrived, completed=watch.arrived, total=self._flights - rolled_back)
            self._progress.refresh()
        else:
            if self._next:
                self.tell(f"written {watch.ended:,} of {self._flights:,}, consumed {watch.arrived:,}")
            self._next = now + LINE_EVERY_S

    def tell(self, line: str) -> None:
        """Print a line, above the bars if there are some."""
        self._console.print(line, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
