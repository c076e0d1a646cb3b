"""The chart for the terminal: rows of bars over time, and a mark where the relay was killed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from outbox_local.demo.figures import Course

BARS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float | None], full: float) -> str:
    """One character per value; a value above nothing shows at least the lowest bar, one above `full` the highest."""
    top = len(BARS) - 1
    return "".join(
        BARS[max(1, min(top, round(value / full * top)))] if value else BARS[0] for value in values
    )


def chart(course: Course) -> list[str]:
    """Lines to print: what was committed, what was read and the median latency, per step of time."""
    lines = []
    width = len(course.read)
    rates = [[value / course.step for value in values] for values in (course.committed, course.read)]
    for name, values, unit in (
        ("committed", rates[0], "/s"),
        ("consumed", rates[1], "/s"),
        ("latency", course.latency, " ms"),
    ):
        known = [value for value in values if value]
        if not known:
            continue
        # Not the highest: beside the catching up after the kill nothing else would be seen.
        full = min(max(known), 2 * median(known))
        lines.append(
            f"{name:>9} ▕{bars(values, full)}▏ median {median(known):,.0f}{unit}, at most {max(known):,.0f}{unit}"
        )
    place = min(width - 1, int(course.killed / course.step))
    mark = "▲ relay killed"
    if place + len(mark) > width + 10:
        mark, place = "relay killed ▲", place - len("relay killed ▲") + 1
    lines.append(" " * (11 + max(0, place)) + mark)
    end = f"{width * course.step:.0f} s"
    lines.append(" " * 11 + "0 s" + " " * max(1, width - 3 - len(end)) + end)
    return lines
