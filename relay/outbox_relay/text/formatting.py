"""Pure formatting of values for people and machines: times, durations, sizes, bytes, and texts that are safe to show.

Times are written in UTC everywhere, as in the log: for people `2026-11-22 13:05:07.249Z`, which every option that
takes a time reads back, and in JSON as RFC 3339 (`2026-11-22T13:05:07.249000Z`).

Nothing that comes from a database reaches a terminal as it is: control characters are shown as escapes, so that
a key or a remark cannot move the cursor or change colours.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

from outbox_relay.text import durations

NOTHING = "-"


def moment(value: datetime) -> str:
    """Write a time for people: in UTC, to the millisecond."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03}Z"


def rfc3339(value: datetime) -> str:
    """Write a time for machines: RFC 3339, in UTC, to the microsecond."""
    return f"{value.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{value.microsecond:06}Z"


def bytes_for_json(value: bytes | None) -> str | dict[str, str] | None:
    """Show bytes as a string when they are printable UTF-8, else as {"base64": "…"}."""
    text = None if value is None else _text(value)
    if value is None or text is not None:
        return text
    return {"base64": base64.b64encode(value).decode("ascii")}


def bytes_for_people(value: bytes | None) -> str | None:
    """Show bytes as text when they are printable UTF-8, else as `base64:` and its text."""
    text = None if value is None else _text(value)
    if value is None or text is not None:
        return text
    return f"base64:{base64.b64encode(value).decode('ascii')}"


def _text(value: bytes) -> str | None:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if all(letter.isprintable() or letter in "\n\t" for letter in text) else None


def cell(value: Any) -> str:
    """Turn a value into one line that is safe on a terminal."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, (bytes, memoryview)):
        value = bytes_for_people(bytes(value))
    if isinstance(value, (list, tuple)):
        value = ", ".join(cell(item) for item in value) or NOTHING
    return printable(str(value))


def printable(text: str) -> str:
    """Show control characters as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def count(value: float | None) -> str:
    """Group thousands: 1,234,567."""
    return NOTHING if value is None else f"{value:,.0f}"


def many(value: int, noun: str) -> str:
    """Count things: 1 message, 1,234 messages."""
    return f"{count(value)} {noun}" if value == 1 else f"{count(value)} {noun}s"


def seconds(value: float | None, *, units: int = 2) -> str:
    """Show a duration in seconds by its largest units, as `durations.about` does."""
    return NOTHING if value is None else durations.about(value, units=units)


def size(value: float | None) -> str:
    """Show bytes in binary units: 512 B, 1.5 MiB."""
    if value is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
