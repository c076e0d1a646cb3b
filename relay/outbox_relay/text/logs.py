"""Structured logs: one line per event with named fields, as text (logfmt) or JSON, on standard error.

Message bodies never get into a log: a field that is bytes is shown as its size only. Passwords in connection
strings are masked in every text that passes through, tracebacks included.
"""

from __future__ import annotations

import functools
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from datetime import UTC, datetime
from typing import IO, Any

from outbox_relay.text.masking import mask_text

ROOT = "outbox"
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
_CONTEXT: ContextVar[dict[str, Any]] = ContextVar("log context", default={})  # noqa: B039  (never changed in place)
_PLAIN = re.compile(r"^[^\s\"=\x00-\x1f\x7f-\x9f]+$")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""What moves a terminal's cursor, or begins a line that looks like another event."""


class Log:
    """A logger whose calls take an event and named fields: `log.info("lane taken", lane=3, epoch=7)`."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, event: str, /, **fields: Any) -> None:
        """Log what only a developer needs."""
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: Any) -> None:
        """Log what happened."""
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: Any) -> None:
        """Log what an operator should check when it stays."""
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, *, exception: BaseException | None = None, **fields: Any) -> None:
        """Log what an operator must check; with `exception`, its traceback too."""
        self._write(logging.ERROR, event, fields, exception)

    def _write(
        self, level: int, event: str, fields: dict[str, Any], exception: BaseException | None = None
    ) -> None:
        if self._logger.isEnabledFor(level):
            fields = {**_CONTEXT.get(), **fields}
            self._logger.log(level, "%s", event, extra={"fields": fields}, exc_info=exception)


@contextmanager
def context(**fields: Any) -> Iterator[None]:
    """Add fields to every event that this thread logs in the block, and threads whose target is `inheriting`."""
    token = _CONTEXT.set({**_CONTEXT.get(), **fields})
    try:
        yield
    finally:
        _CONTEXT.reset(token)


def inheriting(target: Callable[..., None]) -> Callable[..., None]:
    """Return a thread's target that logs with the fields of the thread that calls this."""
    return functools.partial(copy_context().run, target)


def inherit() -> Callable[[], None]:
    """Return an initializer for the threads of a pool, which then log with the fields of the thread that calls this."""
    fields = _CONTEXT.get()

    def begin() -> None:
        _CONTEXT.set(fields)

    return begin


def setup(log_format: str = "text", level: str = "info", stream: IO[str] | None = None) -> None:
    """Send the logs of this process to standard error in the given format; may be called again.

    Other packages' loggers appear in the same format from WARNING on.

    Raises:
        ValueError: an unknown format or level.
    """
    if log_format not in FORMATS:
        raise ValueError(f"log format {log_format!r} is not one of: {', '.join(FORMATS)}")
    if level not in LEVELS:
        raise ValueError(f"log level {level!r} is not one of: {', '.join(LEVELS)}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old.formatter, (TextFormatter, JsonFormatter))]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(ROOT).setLevel(level.upper())


def _shown(value: Any) -> Any:
    """Turn a field into something that both formats can carry, without bodies and without passwords."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_shown(item) for item in value]
    return mask_text(str(value))


def _parts(record: logging.LogRecord) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
        "level": record.levelname.lower(),
        "logger": record.name.removeprefix(f"{ROOT}."),
        "event": mask_text(record.getMessage()),
    }
    fields: dict[str, Any] = getattr(record, "fields", {})
    # A field may not take the place of one of the four above: it would change what the line means.
    parts.update({(f"{name}_" if name in parts else name): _shown(value) for name, value in fields.items()})
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        parts["error"] = mask_text(f"{type(error).__name__}: {error}")
        parts["traceback"] = mask_text("".join(traceback.format_exception(error)).rstrip())
    return parts


class TextFormatter(logging.Formatter):
    """`2026-11-21T20:57:03.120Z info relay: lane taken lane=3 epoch=7`, tracebacks on lines of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one event."""
        parts = _parts(record)
        tail = parts.pop("traceback", None)
        line = f"{parts.pop('time')} {parts.pop('level')} {parts.pop('logger')}: {parts.pop('event')}"
        line = " ".join(
            [
                _escaped(line.replace("\n", " ")),
                *(f"{name}={_logfmt(value)}" for name, value in parts.items()),
            ]
        )
        # Each line of a traceback is indented: none of an exception's own looks like an event.
        return (
            line if tail is None else "\n".join([line, *(f"  {_escaped(each)}" for each in tail.split("\n"))])
        )


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, event, and the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one event."""
        return _escaped(json.dumps(_parts(record), ensure_ascii=False))


def _escaped(text: str) -> str:
    """Return a text with its control characters as JSON writes them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _logfmt(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        value = ",".join(str(item) for item in value)
    text = str(value)
    return text if _PLAIN.match(text) else _escaped(json.dumps(text, ensure_ascii=False))
