"""What a session prints: its own lines and those of relay and checker, one at a time, for people or for machines."""

from __future__ import annotations

import json
import re
import shlex
import sys
import threading
from collections.abc import Mapping
from typing import IO

from rich.console import Console
from rich.text import Text

OWN = "dev"
"""The name before the session's own lines."""
_WIDTH = len("checker")
_COLOURS = {"relay": "cyan", "checker": "magenta", "console": "green", OWN: "bold"}
_LINE = re.compile(r"^\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d\.\d{3})Z (debug|info|warning|error) (.*)$")
"""A line of `outbox_relay.text.logs.TextFormatter`."""
_STYLES = {"warning": "yellow", "error": "bold red", "debug": "dim"}


class _Console(Console):
    """A console that leaves a closed output to its caller; rich's own ends the thread that prints."""

    def on_broken_pipe(self) -> None:
        """Raise what happened."""
        raise BrokenPipeError


class Screen:
    """Prints lines from several threads; `broken` is set when nothing can be printed any more."""

    def __init__(self, *, as_json: bool, out: IO[str] | None = None) -> None:
        self._out, self._as_json = out or sys.stdout, as_json
        self._console = _Console(file=self._out, highlight=False)
        self._lock = threading.Lock()
        self.broken = threading.Event()

    @property
    def log_format(self) -> str:
        """The format in which the processes shall log."""
        return "json" if self._as_json else "text"

    def report(self, line: str) -> None:
        """Print a line of the session's own."""
        self.show(OWN, json.dumps({"event": line}, ensure_ascii=False) if self._as_json else line)

    def show(self, process: str, line: str) -> None:
        """Print a line that a process wrote."""
        if self._as_json:
            self._print(as_object(process, line))
        else:
            self._print(as_text(process, line))

    def announce(self, event: str, environment: Mapping[str, str], pid: int | None = None) -> None:
        """Print what points commands and services at the session."""
        if self._as_json:
            facts = {"event": event, "environment": dict(environment)} | ({"pid": pid} if pid else {})
            self.show(OWN, json.dumps(facts, ensure_ascii=False))
            return
        self.report(event if pid is None else f"{event}, as process {pid}")
        if environment:
            exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
            self._print(f"\n{exports}\n")

    def _print(self, line: str | Text) -> None:
        try:
            with self._lock:
                self._console.print(line, markup=False, soft_wrap=True)
        except OSError:
            self.broken.set()


def as_object(process: str, line: str) -> str:
    """Return a line of JSON that names the process; other text, such as a traceback, becomes its event."""
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    fields = found if isinstance(found, dict) else {"event": line}
    return json.dumps({"process": process, **fields}, ensure_ascii=False)


def as_text(process: str, line: str) -> Text:
    """Return a line for people: who, the time of day (UTC), the level, the event."""
    shown = Text(f"{process:<{_WIDTH}} | ", style=_COLOURS.get(process, ""))
    match = _LINE.match(line)
    if match is None:
        return shown.append(line, style="not bold default")
    time, level, rest = match.groups()
    return shown.append(f"{time} ", style="not bold dim default").append(
        f"{level:<7} {rest.removeprefix(f'{process}: ')}",
        style=f"{_STYLES.get(level, 'not bold default')}",
    )
