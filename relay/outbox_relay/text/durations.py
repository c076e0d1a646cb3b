"""Durations as operators write them (500ms, 30s, 10min, 2h, 3d, 1w), and as they are shown to people."""

from __future__ import annotations

import itertools
import re
from datetime import timedelta

from outbox_relay.text.errors import OptionError

UNITS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}
MOST_SECONDS = 100 * 365 * 86_400
ALLOWED = "a span such as 500ms, 30s, 10min, 2h, 3d or 1w"

_SHOWN = [("y", 365 * 86_400), *((unit, UNITS[unit]) for unit in ("d", "h", "min", "s"))]
_SPAN = re.compile(rf"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>{'|'.join(UNITS)})", re.ASCII)


class DurationError(OptionError, ValueError):
    """A text is not a duration; the error states what is."""


def read_seconds(text: str) -> float | None:
    """Read a span as seconds; None when it is not a duration, or longer than a hundred years."""
    found = _SPAN.fullmatch(text.strip())
    if found is None:
        return None
    value = float(found["number"]) * UNITS[found["unit"]]
    return value if value <= MOST_SECONDS else None


def duration(option: str, text: str) -> timedelta:
    """Read the span of an option.

    Raises:
        DurationError: it is not a duration.
    """
    value = read_seconds(text)
    if value is None:
        raise DurationError(f"{option} {text!r} is not a duration; expected {ALLOWED}")
    return timedelta(seconds=value)


def short(value: timedelta) -> str:
    """Write a duration exactly, as an option reads it back, in the largest unit that leaves no rest: 30s, 36h, 1.5s."""
    total = value.total_seconds()
    for unit in ("w", "d", "h", "min", "s"):
        size = UNITS[unit]
        if total >= size and total % size == 0:
            return f"{total // size:.0f}{unit}"
    return f"{total:g}s" if total >= 1 or total == 0 else f"{total * 1000:g}ms"


def about(seconds: float, *, units: int = 2) -> str:
    """Show a duration by its largest units: 0.4 s, 12 s, 3 min 20 s, 5 h 2 min, 4 d 3 h, 2 y 40 d.

    Ages and waits are shown so. What is left out is too small to matter next to the rest, so the text does not read
    back as the same duration; settings need that and are written by `short`.

    Args:
        seconds: Negative ones count as 0.
        units: 2, or 1 where a column is narrow.
    """
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds > MOST_SECONDS:
        return "more than 100 years"
    for (unit, size), (next_unit, next_size) in itertools.pairwise(_SHOWN):
        if seconds >= size:
            rest = int(seconds % size // next_size) if units > 1 else 0
            return f"{int(seconds // size)} {unit}" + (f" {rest} {next_unit}" if rest else "")
    return f"{seconds:.0f} s"
