"""The page of a run: one self-contained HTML file with a timeline as inline SVG; nothing is loaded and nothing runs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources

from outbox_relay.console import life
from outbox_relay.proving.course import Course
from outbox_relay.proving.crew import Role
from outbox_relay.proving.faults import FAULT_TEXTS, Fault, FaultKind
from outbox_relay.proving.history import PROMISES, Fate
from outbox_relay.proving.outcome import ProofOutcome
from outbox_relay.text import formatting

WIDTH, LEFT, RIGHT = 900, 76, 8
PANEL, GAP, ROW = 110, 30, 20
FAULT_COLOURS = {
    FaultKind.KILL: "--bad",
    FaultKind.PAUSE: "--wait",
    FaultKind.STOP: "--calm",
    FaultKind.DISCONNECT: "--soft",
}
STYLE = """
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--soft); }
.legend span { margin-right: 1.2rem; white-space: nowrap; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
"""


def page_of(outcome: ProofOutcome) -> str:
    """Return the page of a run."""
    style = resources.files("outbox_relay").joinpath("console/style.css").read_text(encoding="utf-8")
    word, colour = ("every promise was kept", "good") if outcome.kept else ("a promise is broken", "bad")
    title = f'<h1>{outcome.delivery}: <span class="{colour}">{word}</span></h1>'
    about = f"seed {outcome.seed}; {escape(outcome.servers)}; {outcome.seconds:.0f} s"
    sections = [
        f"<header><p class=soft>outbox prove</p>{title}<p class=soft>{about}</p></header>",
        _section("Checks", _checks(outcome)),
        _section("Timeline", _timeline(outcome)),
        _section("Messages", _facts(outcome)),
        _section("Faults", _fault_table(outcome)),
    ]
    body = "\n".join(sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{life.POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>outbox prove: {word}</title>
<style>
{style}{STYLE}</style>
</head>
<body>
<main>
{body}
<footer>The same faults again: --seed {outcome.seed}. Made {formatting.moment(datetime.now(UTC))}.</footer>
</main>
</body>
</html>
"""


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content}\n</section>"


def _checks(outcome: ProofOutcome) -> str:
    rows = []
    for offence, promise in PROMISES.items():
        found, checked = outcome.findings.found[offence], outcome.findings.checked[offence]
        mark, colour = ("✗", "bad") if found else ("✓", "good")
        named = "".join(
            f"<p><code>{escape(name)}</code> {escape(why)}</p>" for name, why in outcome.first(offence)
        )
        rows.append(
            f'<tr><td class="{colour}">{mark} {offence}</td><td>{escape(promise)}{named}</td>'
            f"<td class=right>{checked:,}</td><td class=right>{len(found):,}</td></tr>"
        )
    head = "<tr><th>offence</th><th>what was checked</th><th class=right>times</th><th class=right>broken</th></tr>"
    return f"<div class=wide><table>{head}{''.join(rows)}</table></div>"


def _facts(outcome: ProofOutcome) -> str:
    latency = outcome.latency
    pairs = [(str(fate), f"{outcome.fates[fate]:,}") for fate in Fate if outcome.fates[fate]]
    pairs += [
        ("records read", f"{outcome.read:,}, {outcome.findings.repeats:,} of them allowed repeats"),
        ("applied by the inbox", f"{outcome.applied:,}"),
    ]
    if latency is not None:
        text = f"p50 {latency.p50:,.1f} ms, p99 {latency.p99:,.0f} ms, at most {latency.highest:,.0f} ms"
        pairs.append(("latency", f"{text}, from COMMIT to the consumer, faults included"))
    pairs += [("ended without a fault", text) for text in outcome.unexpected]
    shown = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
    return f"<dl>{shown}</dl>"


def _fault_table(outcome: ProofOutcome) -> str:
    if not outcome.faults:
        return "<p>none</p>"
    begin = outcome.course.begin if outcome.course else outcome.faults[0].at
    counted = ", ".join(f"{number} {kind}" for kind, number in outcome.counted_faults.items())
    rows = "".join(
        f"<tr><td class=right>{max(0.0, one.at - begin):.1f} s</td><td>{escape(one.text)}</td></tr>"
        for one in outcome.faults
    )
    return f"<p>{counted}; each was seen to take effect</p><div class=wide><table>{rows}</table></div>"


def _timeline(outcome: ProofOutcome) -> str:
    course = outcome.course
    if course is None:
        return "<p>nothing arrived</p>"
    latency_top = PANEL + GAP
    faults_top = latency_top + PANEL + GAP
    height = faults_top + ROW * len(Role) + 24
    drawn = [
        _relay_lines(course, outcome.faults, faults_top),
        _rates(course, 16),
        _latencies(course, latency_top + 16),
        _fault_rows(course, outcome.faults, faults_top + 8),
        _text(LEFT, height - 4, "0 s"),
        _text(WIDTH - RIGHT, height - 4, f"{course.seconds:.0f} s", "end"),
    ]
    legend = [("--calm", "committed/s"), ("--good", "read/s; p50"), ("--wait", "p99")]
    legend += [(FAULT_COLOURS[kind], f"{kind}: {text}") for kind, text in FAULT_TEXTS.items()]
    shown = "".join(
        f'<span><i style="background: var({colour})"></i>{escape(text)}</span>' for colour, text in legend
    )
    label = "Rates, latencies and faults over time"
    picture = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'
    return f'{picture}<p class="legend soft">{shown}</p>'


def _rates(course: Course, top: float) -> str:
    committed = [value / course.step for value in course.committed]
    read = [value / course.step for value in course.read]
    highest = max([*committed, *read, 1.0])
    heights = [(PANEL - 16) * value / highest for value in committed]
    width = (WIDTH - LEFT - RIGHT) / len(committed)
    bars = "".join(
        f'<rect x="{_x(course, place * course.step):.1f}" y="{top + PANEL - 16 - height:.1f}" '
        f'width="{max(width - 1, 0.5):.1f}" height="{height:.1f}" fill="var(--calm)" opacity=".45"/>'
        for place, height in enumerate(heights)
    )
    line = _line(course, [top + (PANEL - 16) * (1 - value / highest) for value in read], "--good")
    axis = _axis(top, f"{highest:,.0f}/s") + _axis(top + PANEL - 16, "0")
    return axis + bars + line


def _latencies(course: Course, top: float) -> str:
    """The percentiles on a scale of powers of ten, from 1 ms."""
    known = [value for value in course.p99 if value is not None]
    powers = max(1, math.ceil(math.log10(max([*known, 1.0]))))

    def height(value: float | None) -> float | None:
        return None if value is None else top + (PANEL - 16) * (1 - math.log10(max(value, 1.0)) / powers)

    axes = [
        _axis(top + (PANEL - 16) * (1 - power / powers), f"{10**power:,} ms") for power in range(powers + 1)
    ]
    lines = _line(course, map(height, course.p99), "--wait") + _line(
        course, map(height, course.p50), "--good"
    )
    return "".join(axes) + lines


def _line(course: Course, heights: Iterable[float | None], colour: str) -> str:
    """A line through the steps that have a value; it is broken where there is none."""
    path, pen = [], "M"
    for place, height in enumerate(heights):
        if height is None:
            pen = "M"
            continue
        path.append(f"{pen}{_x(course, (place + 0.5) * course.step):.1f} {height:.1f}")
        pen = "L"
    return f'<path d="{" ".join(path)}" fill="none" stroke="var({colour})" stroke-width="2"/>'


def _relay_lines(course: Course, faults: Sequence[Fault], bottom: float) -> str:
    return "".join(
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="10" y2="{bottom}" stroke="var(--line)" stroke-dasharray="3 3"/>'
        for one in faults
        if one.role is Role.RELAY
        for x in [_x(course, one.at - course.begin)]
    )


def _fault_rows(course: Course, faults: Sequence[Fault], top: float) -> str:
    drawn = []
    for place, role in enumerate(Role):
        y = top + place * ROW
        drawn.append(_text(LEFT - 8, y + 12, str(role), "end"))
        for one in faults:
            if one.role is role:
                begin, end = (_x(course, at - course.begin) for at in (one.at, one.until))
                drawn.append(
                    f'<rect x="{begin:.1f}" y="{y + 2}" width="{max(end - begin, 4):.1f}" height="{ROW - 6}" rx="2" '
                    f'fill="var({FAULT_COLOURS[one.kind]})"><title>{escape(one.text)}</title></rect>'
                )
    return "".join(drawn)


def _x(course: Course, seconds: float) -> float:
    share = min(1.0, max(0.0, seconds / course.seconds))
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def _axis(y: float, text: str) -> str:
    line = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
    return line + _text(LEFT - 8, y + 4, text, "end")


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
