"""What became of half messages: their outcomes, who decided them, what their producers answered, and dead messages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from outbox_etl.report import charts
from outbox_etl.report.facts import Figures, Row, column, every_day, folded, sums
from outbox_etl.report.html import figure, section
from outbox_etl.report.text import Markup, many, name, share

OUTCOMES = {"committed": "c3", "rolled_back": "c2", "exhausted": "c4", "undecided": "c5"}
DECIDERS = {"by_producer": "c1", "by_checker": "c3", "by_policy": "c2", "by_operator": "c4"}
ANSWERS = {"answered_commit": "c3", "answered_rollback": "c2", "answered_unknown": "c5"}


def decisions(of: Figures) -> Markup:
    """Half messages by outcome, and by who decided them."""
    title, anchor = "Half messages and their decisions", "decisions"
    if not of.decided_by_day:
        return section(title, "No half message was born in these days.", anchor=anchor)
    rows = folded(of.decided_by_group, "producer_group", "half", *OUTCOMES, *DECIDERS)
    return section(title, _outcomes(of.decided_by_day), _deciders(rows), anchor=anchor)


def _outcomes(rows: Sequence[Row]) -> Markup:
    by_day = {row["day"]: row for row in rows}
    days, nothing = every_day(by_day), dict.fromkeys(OUTCOMES, 0)
    half = sums(rows, "half")["half"]
    summary = (
        f"{count:,} {words(each)} ({share(count / half)})" for each, count in sums(rows, *OUTCOMES).items()
    )
    return figure(
        "Half messages per day of their birth, by outcome",
        f"{many(half, 'half message')}: {', '.join(summary)}.",
        partial(
            charts.stacked,
            moments=[f"{day:%m-%d}" for day in days],
            series={each: [by_day.get(day, nothing)[each] for day in days] for each in OUTCOMES},
            colors=OUTCOMES,
        ),
        ("day of birth (UTC)", "half messages", *map(words, OUTCOMES)),
        [(row["day"], row["half"], *(row[each] for each in OUTCOMES)) for row in rows],
        legend={words(each): color for each, color in OUTCOMES.items()},
    )


def _deciders(rows: Sequence[Row]) -> Markup:
    summary = ", ".join(f"{count:,} {words(each)}" for each, count in sums(rows, *DECIDERS).items())
    groups = column(rows, "producer_group")
    return figure(
        "Who decided, per producer group",
        f"Decided: {summary}.",
        partial(
            charts.bars,
            names=groups,
            series={each: column(rows, each) for each in DECIDERS},
            colors=DECIDERS,
            pile=True,
        ),
        ("producer group", "half messages", *map(words, OUTCOMES), *map(words, DECIDERS)),
        [
            (name(row["producer_group"]), row["half"], *(row[each] for each in (*OUTCOMES, *DECIDERS)))
            for row in rows
        ],
        legend={words(each): color for each, color in DECIDERS.items()},
    )


def checks(of: Figures) -> Markup:
    """What producers were asked and answered, and messages that could not be published."""
    title, anchor = "Check-backs and dead messages", "checks"
    if not of.checks:
        said = "No producer was asked, and no message became DEAD, in these days."
        return section(title, said, anchor=anchor)
    colors = {**ANSWERS, "dead": "c4"}
    rows = folded(of.checks, "producer_group", "checks", *colors)
    total = sums(rows, "checks", *colors)
    picture = figure(
        "Results of checks, and dead messages, per producer group",
        f"{many(total['checks'], 'check')}: {total['answered_commit']:,} answered COMMIT, "
        f"{total['answered_rollback']:,} ROLLBACK, {total['answered_unknown']:,} UNKNOWN (failures too). "
        f"Dead: {many(total['dead'], 'message')}.",
        partial(
            charts.bars,
            names=column(rows, "producer_group"),
            series={each: column(rows, each) for each in colors},
            colors=colors,
            pile=True,
        ),
        ("producer group", "checks", *map(words, colors)),
        [(name(row["producer_group"]), row["checks"], *(row[each] for each in colors)) for row in rows],
        legend={words(each): color for each, color in colors.items()},
    )
    return section(title, picture, anchor=anchor)


def words(of: str) -> str:
    """Return the name of a column for people."""
    return of.removeprefix("answered_").replace("_", " ")
