"""Durations as operators write them: 500ms, 30s, 10min, 2h, 3d, 1w."""

from __future__ import annotations

import re
from datetime import timedelta

from outbox_relay.errors import OptionError

UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_SECONDS = 100 * 365 * 86_400
ALLOWED = "a span such as 500ms, 30s, 10min, 2h, 3d or 1w"

_SPAN = re.compile(rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{'|'.join(UNITS)})", re.ASCII)


class DurationError(OptionError, ValueError):
    """A text is not a duration; the error says what is."""


def seconds(text: str) -> float | None:
    """Read a span as seconds; None when it is none, or longer than a hundred years."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return None
    value = float(found["number"]) * UNITS[found["unit"]]
    return value if value <= MOST_SECONDS else None


def duration(option: str, text: str) -> timedelta:
    """Read the span of an option.

    Raises:
        DurationError: it is none.
    """
    value = seconds(text)
    if value is None:
        raise DurationError(f"{option} {text!r} is not a duration; expected {ALLOWED}")
    return timedelta(seconds=value)


def short(value: timedelta) -> str:
    """Write a duration as it can be read again, in the largest unit that leaves no rest: 30s, 10min, 72h, 1.5s."""
    total = value.total_seconds()
    for unit in ("w", "d", "h", "min", "s"):
        size = UNITS[unit]
        if total >= size and total % size == 0:
            return f"{total // size:.0f}{unit}"
    return f"{total:g}s" if total >= 1 or total == 0 else f"{total * 1000:g}ms"
