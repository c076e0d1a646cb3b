"""The report: one HTML file with the proof, the figures and charts as inline SVG; it loads nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

from outbox_local.demo.claims import Claim
from outbox_local.demo.figures import Course
from outbox_local.demo.outcome import DemoResult, latency_text

WIDTH, HEIGHT = 760, 150
LEFT, TOP, BOTTOM = 64, 14, 24

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --faint: #66717d; --line: #d5dbe1; --paper: #fff;
  --one: #2463b0; --two: #0f8a6b; --three: #8a5a00; --bad: #b3261e; --good: #0f7a4f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e9ee; --faint: #97a3af; --line: #38434e; --paper: #14191e;
  --one: #6ea8f0; --two: #4cc7a4; --three: #e0b050; --bad: #ff8a80; --good: #5fd3a0; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 800px;
  margin: 32px auto; padding: 0 20px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 16px; margin: 28px 0 6px; }
p.about { color: var(--faint); margin: 0 0 16px; } .good { color: var(--good); } .bad { color: var(--bad); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 2px 20px; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; font-variant-numeric: tabular-nums; }
ul { list-style: none; padding: 0; margin: 0; } ul ul { padding-left: 24px; font-size: 14px; }
svg { width: 100%; height: auto; display: block; } svg text { font-size: 12px; fill: var(--faint); }
"""


def write_report(path: Path, outcome: DemoResult) -> None:
    """Write the report; raises OSError when that fails."""
    path.write_text(_page(outcome), encoding="utf-8")


def _page(outcome: DemoResult) -> str:
    proof, figures = outcome.proof, outcome.figures
    about = f"{outcome.flights:,} flights, {outcome.producers} producers, seed {outcome.seed}, {outcome.seconds:.0f} s"
    parts = [
        "<h1>The flights of New York 2013 through the outbox</h1>",
        f'<p class="about">{about}; the relay was killed once.</p>',
    ]
    if figures is not None:
        course = figures.course
        parts += [
            "<h2>Committed, transactions per second</h2>",
            _bars(course, [value / course.step for value in course.committed], "one", "/s"),
            "<h2>Consumed, messages per second</h2>",
            _bars(course, [value / course.step for value in course.read], "two", "/s"),
            "<h2>Latency: median from COMMIT to the consumer, milliseconds (logarithmic)</h2>",
            _line(course, "three"),
            "<h2>Figures</h2>",
            _pairs(
                [
                    (
                        "transactions",
                        f"{figures.transactions_per_s:,.0f}/s, {figures.committed_per_s:,.0f}/s committed",
                    ),
                    ("published", f"{figures.published_per_s:,.0f}/s"),
                    ("consumed", f"{figures.read_per_s:,.0f}/s, at best {figures.read_per_s_at_best:,.0f}/s"),
                    ("latency", latency_text(figures.steady)),
                    ("contended for an aircraft", f"{figures.contended:,} transactions"),
                    (
                        "recovery",
                        "none"
                        if figures.recovery_s is None
                        else f"{figures.recovery_s:.2f} s after the kill; "
                        f"{figures.held_up:,} messages waited",
                    ),
                ]
            ),
        ]
    word = '<span class="good">proven</span>' if outcome.holds else '<span class="bad">not proven</span>'
    parts.append(f"<h2>The proof: {word}</h2>")
    parts.append(
        f"<p>{proof.committed:,} committed, {proof.rolled_back:,} rolled back, {proof.read:,} records read, "
        f"{proof.repeated:,} of them again after the kill, of {proof.aircraft:,} aircraft.</p><ul>"
    )
    parts += [*map(_claim, proof.claims.values()), "</ul>"]
    if outcome.history is not None:
        parts.append(f"<h2>The warehouse in {escape(str(outcome.warehouse))}</h2><ul>")
        parts += [*map(_claim, outcome.history.claims.values()), "</ul>"]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>outbox demo</title>'
        f"<style>{_STYLE}</style></head>\n<body>{body}</body></html>\n"
    )


def _claim(claim: Claim) -> str:
    mark, kind = ("✓", "good") if claim.holds else ("✗", "bad")
    offenders = "".join(f"<li>{escape(text)}</li>" for text in claim.offenders)
    count = f"{claim.checked:,}" if claim.holds else f"broken {claim.broken:,} times of {claim.checked:,}"
    return (
        f'<li><span class="{kind}">{mark}</span> {escape(claim.text)} ({count})'
        + (f"<ul>{offenders}</ul>" if offenders else "")
        + "</li>"
    )


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return (
        "<dl>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in pairs)
        + "</dl>"
    )


def _x(course: Course, seconds: float) -> float:
    return LEFT + (WIDTH - LEFT) * seconds / (course.step * len(course.read))


def _frame(course: Course, content: str, labels: Sequence[tuple[float, str]]) -> str:
    """A chart's content with its axes and the mark of the kill; labels: heights and texts."""
    base = HEIGHT - BOTTOM
    lines = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
        for y, text in labels
    )
    killed = _x(course, course.killed)
    end = course.step * len(course.read)
    anchor = "start" if course.killed < end * 0.8 else "end"
    mark = (
        f'<line x1="{killed:.1f}" x2="{killed:.1f}" y1="{TOP}" y2="{base}" stroke="var(--bad)" stroke-dasharray="3 3"/>'
        f'<text x="{killed + (4 if anchor == "start" else -4):.1f}" y="{TOP - 3}" text-anchor="{anchor}" '
        'style="fill: var(--bad)">relay killed</text>'
    )
    times = (
        f'<text x="{LEFT}" y="{HEIGHT - 6}">0 s</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 6}" text-anchor="end">{end:.0f} s</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{lines}{content}{mark}{times}</svg>'


def _bars(course: Course, values: Sequence[float], colour: str, unit: str) -> str:
    base = HEIGHT - BOTTOM
    highest = max([*values, 1.0])
    width = (WIDTH - LEFT) / len(values)
    content = "".join(
        f'<rect x="{_x(course, place * course.step):.1f}" y="{base - (base - TOP) * value / highest:.1f}" '
        f'width="{max(width - 1, 0.5):.1f}" height="{(base - TOP) * value / highest:.1f}" fill="var(--{colour})"/>'
        for place, value in enumerate(values)
    )
    return _frame(course, content, [(base, "0"), (TOP, f"{highest:,.0f}{unit}")])


def _line(course: Course, colour: str) -> str:
    """Medians over time on a scale of powers of ten, from 1 ms."""
    base = HEIGHT - BOTTOM
    values = [value for value in course.latency if value is not None]
    powers = max(1, len(str(int(max(values)))))

    def y(value: float) -> float:
        return base - (base - TOP) * min(1.0, math.log10(max(value, 1.0)) / powers)

    points = [
        (_x(course, (place + 0.5) * course.step), y(value))
        for place, value in enumerate(course.latency)
        if value is not None
    ]
    path = "M" + " L".join(f"{x:.1f} {height:.1f}" for x, height in points)
    content = f'<path d="{path}" fill="none" stroke="var(--{colour})" stroke-width="2"/>'
    return _frame(course, content, [(y(10**power), f"{10**power:,} ms") for power in range(powers + 1)])
