"""The whole page: head, conclusion, what went wrong, and all sections, in one HTML text."""

from __future__ import annotations

from importlib import resources
from typing import Any

from outbox_etl.report.facts import Facts, Figures
from outbox_etl.report.flow import latency, throughput
from outbox_etl.report.half_messages import checks, decisions
from outbox_etl.report.html import badge, pairs, section
from outbox_etl.report.proof import conclusion, proof
from outbox_etl.report.spread import gaps, skew
from outbox_etl.report.text import Markup, cell, lasting, many

NOTE = "Days and times are UTC, by the clock of the PostgreSQL server. Bodies and keys are not shown."
ROWS = ("messages", "events", "publications")
SECTIONS = (throughput, latency, decisions, checks, skew, gaps)
# Nothing is loaded and nothing runs, whatever a topic is called.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(facts: Facts) -> str:
    """Write the report."""
    run = facts.run
    title = f"Warehouse report: {run.command}, {run.started:%Y-%m-%d %H:%M} UTC"
    style = resources.files("outbox_etl").joinpath("report", "style.css").read_text(encoding="utf-8")
    parts = [
        _head(facts),
        *([_wrong(facts)] if run.error else []),
        *([_unread(facts)] if facts.unread else []),
        *([_tiles(facts.figures)] if facts.figures else []),
        *proof(facts),
        *_warehouse(facts),
    ]
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{cell(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>",
            *parts,
            f"<footer>outbox {cell(run.version)}. {NOTE}</footer>\n</main>\n</body>\n</html>\n",
        ]
    )


def _head(facts: Facts) -> Markup:
    run, answer = facts.run, facts.run.answer
    if run.error:
        word, kind = "failed", "bad"
    else:
        word, kind = conclusion(answer) if run.command == "reconcile" else ("done", "good")
    faults = answer.get("mart_faults")
    if faults:
        word, kind = "exported, marts failed", "bad"
    rows: list[tuple[str, Any]] = [
        ("warehouse", run.target),
        ("PostgreSQL", run.source),
        ("started", run.started),
        ("took", lasting(1000 * run.seconds)),
    ]
    if "window_hi" in answer:
        rows.append(("transactions", f"{answer['window_lo']} to {answer['window_hi']}"))
    if run.command in ("run", "backfill"):
        rows += [(f"{name} written", answer[name]) for name in ROWS if name in answer]
    if days := answer.get("mart_days"):
        rows.append(("marts made for", f"{many(len(days), 'day')}, {days[0]} to {days[-1]}"))
    if faults:
        rows.append(("marts not made", "; ".join(f"{of}: {why}" for of, why in faults.items())))
    if facts.watermark:
        rows.append(
            ("filled up to", f"transaction {facts.watermark['hi']}, message {facts.watermark['top']:,}")
        )
    figures = facts.figures
    if figures:
        more = "; earlier ones are not in this report" if figures.earlier else ""
        rows.append(("days shown", f"{figures.first} to {figures.last}{more}"))
    return Markup(
        f"<header><p class=eyebrow>Outbox warehouse</p><h1>{cell(run.command.capitalize())} {badge(word, kind)}</h1>\n"
        f"{pairs(rows)}</header>"
    )


def _tiles(of: Figures) -> Markup:
    sums = {
        "sent": sum(row["sent"] for row in of.rate),
        "published": sum(row["published"] for row in of.rate),
        "half messages": sum(row["half"] for row in of.decided_by_day),
        "undecided": sum(row["undecided"] for row in of.decided_by_day),
        "checks": of.checks[0]["all_checks"] if of.checks else 0,
        "dead": of.checks[0]["all_dead"] if of.checks else 0,
    }
    tiles = "".join(f"<li><b>{cell(count)}</b>{cell(name)}</li>" for name, count in sums.items())
    return Markup(f'<ul class=tiles aria-label="Messages of these days">{tiles}</ul>')


def _wrong(facts: Facts) -> Markup:
    return section(
        "What went wrong", Markup(f"<pre class=bad>{cell(facts.run.error)}</pre>"),
        "A run that failed shows nothing half: what is below is the warehouse as it is." if facts.figures else "",
        anchor="wrong",
    )  # fmt: skip


def _unread(facts: Facts) -> Markup:
    rows = "".join(f"<li>{cell(text)}</li>" for text in facts.unread)
    return section("What could not be read", Markup(f"<ul>{rows}</ul>"), anchor="unread")


def _warehouse(facts: Facts) -> list[Markup]:
    if facts.figures:
        return [write(facts.figures) for write in SECTIONS]
    if facts.unread:
        return []
    if facts.watermark is None and facts.run.error:
        return []
    said = (
        "The warehouse is empty: `outbox etl run` fills it."
        if facts.watermark is None
        else "The warehouse holds no message yet."
    )
    return [section("Nothing to show", said, anchor="empty")]
