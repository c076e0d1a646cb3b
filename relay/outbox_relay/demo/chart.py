"""The chart for the terminal: rows of bars over time, and a mark where the relay was killed."""

from __future__ import annotations

from collections.abc import Sequence

from outbox_relay.demo.figures import Course

BARS = " ▁▂▃▄▅▆▇█"


def bars(values: Sequence[float | None], highest: float) -> str:
    """One character per value; a value above nothing shows at least the lowest bar."""
    return "".join(
        BARS[0] if not value else BARS[max(1, min(len(BARS) - 1, round(value / highest * (len(BARS) - 1))))]
        for value in values
    )


def chart(course: Course) -> list[str]:
    """Lines to print: what was committed and what was read, per step of time, on one scale each."""
    lines = []
    width = len(course.read)
    for name, values in (("committed", course.committed), ("consumed", course.read)):
        highest = max(values)
        lines.append(f"{name:>9} ▕{bars(values, highest)}▏ at most {highest / course.step:,.0f}/s")
    medians = [value for value in course.latency if value is not None]
    lines.append(f"{'p50':>9} ▕{bars(course.latency, max(medians))}▏ at most {max(medians):,.0f} ms")
    place = min(width - 1, int(course.killed / course.step))
    mark = "▲ relay killed"
    if place + len(mark) > width + 10:
        mark, place = "relay killed ▲", place - len("relay killed ▲") + 1
    lines.append(" " * (11 + max(0, place)) + mark)
    end = f"{width * course.step:.0f} s"
    lines.append(" " * 11 + "0 s" + " " * max(1, width - 3 - len(end)) + end)
    return lines
