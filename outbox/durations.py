"""Durations as arguments: seconds or a timedelta, checked, and as PostgreSQL's interval."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outbox.errors import OutboxError

Duration = timedelta | float
"""A timedelta, or seconds."""
LONGEST = timedelta(days=3650)
"""Longest span that may be asked for."""


def interval(
    argument: str, value: Any, error: type[OutboxError], *, least: timedelta = timedelta(0)
) -> timedelta | None:
    """Check a duration; None stays None.

    Raises:
        error: of the class given, naming the argument: no time, or out of range.
    """
    if value is None:
        return None
    if isinstance(value, timedelta | int | float) and not isinstance(value, bool):
        try:
            span = value if isinstance(value, timedelta) else timedelta(seconds=value)
        except (OverflowError, ValueError):  # infinite, or not a number
            span = timedelta.max
        if least <= span <= LONGEST:
            return span
    raise error(
        f"{argument}: {value!r}; allowed: seconds or a timedelta, {least.total_seconds():g} s to {LONGEST.days} days"
    )


def text_of(span: timedelta | None) -> str | None:
    """The span as PostgreSQL reads an interval, exactly, whatever the session's settings."""
    return None if span is None else f"{span // timedelta(microseconds=1)} microseconds"
