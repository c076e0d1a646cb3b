"""Values as people read them: numbers, times, names; and user data made harmless, in HTML and in pictures."""

from __future__ import annotations

import hashlib
import html
import math
from datetime import UTC, date, datetime

LONGEST = 48
"""Characters of a name in a picture."""
_UNITS = ((86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"), (1_000.0, "s"), (1.0, "ms"))


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


class Quantity(str):
    """A number with its unit."""

    __slots__ = ()


def harmless(text: str) -> str:
    """Replace what shows nothing, turns the direction of writing, or cannot be encoded."""
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text
    )


def cell(value: object) -> Markup:
    """A value in HTML."""
    match value:
        case Markup():
            return value
        case None:
            return Markup("–")
        case bool():
            return Markup("yes" if value else "no")
        case int():
            return Markup(f"{value:,}")
        case float():
            return Markup(f"{value:,.1f}")
        case datetime():
            return Markup(f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
        case date():
            return Markup(value.isoformat())
        case _:
            return Markup(html.escape(harmless(str(value))))


def label(value: object, longest: int = LONGEST) -> str:
    """A name in a picture."""
    text = harmless(name(value)).replace("\n", " ")
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def name(value: object) -> str:
    """A topic, or a producer group; messages may have none."""
    return "(none)" if value is None else "(empty)" if value == "" else str(value)


def many(number: int, one: str, several: str = "") -> str:
    """A count with its noun: 1 day, 1,200 days."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def compact(value: float) -> str:
    """A count on an axis: 950, 1.2k, 3.4M."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def lasting(milliseconds: float) -> Quantity:
    """A duration: 0.4 ms, 12 ms, 1.5 s, 3 min, 2 h, 4 d."""
    for size, unit in _UNITS:
        if milliseconds >= size:
            number = milliseconds / size
            return Quantity(f"{number:.3g} {unit}" if number < 100 else f"{number:,.0f} {unit}")
    return Quantity(f"{milliseconds:.2g} ms")


def share(part: float) -> Quantity:
    """A share, 0 to 1, as per cent."""
    return Quantity(f"{100 * part:.1f}%")


def edge(bucket: int) -> float:
    """The lower edge, in ms, of a bucket of the histogram: three per decade of microseconds, from 1, 2 and 5 on."""
    decade, step = divmod(bucket, 3)
    return math.pow(10, decade - 3) * (1, 2, 5)[step]


def key_hash(key: bytes | bytearray | None) -> str:
    """Eight digits of a key's SHA-256: enough to know it again, and a key may be somebody's name."""
    return "–" if key is None else hashlib.sha256(bytes(key)).hexdigest()[:8]
