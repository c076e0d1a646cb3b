"""The pictures of a report: each takes plain numbers, and returns an SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from outbox_etl.report.drawing import COLORS, WIDTH, sheet
from outbox_etl.report.text import Markup, compact, edge, label, lasting

Series = Mapping[str, Sequence[float]]
PERCENTILES = ("p50", "p95", "p99")
MARKS = {"p50": "o", "p95": "s", "p99": "^"}
FEWEST = 8
"""Points that an axis of time has room for at least: a single one does not fill it."""
LEAST = 0.05
"""ms; a logarithmic axis has no 0."""


def over_time(
    title: str, said: str, moments: Sequence[str], filled: Sequence[int], line: Sequence[int]
) -> Markup:
    """Two amounts over time: one as an area, one as a line of steps over it."""
    with sheet(title, said, 2.6) as made:
        axes, edges = made.axes(), [place - 0.5 for place in range(len(moments) + 1)]
        axes.stairs(filled, edges, fill=True, color=COLORS["c1"], alpha=0.75)
        axes.stairs(line, edges, color=COLORS["c2"], linewidth=1.6, baseline=None)
        _moments(axes, moments)
        _counts(axes.yaxis)
        axes.margins(y=0.08)
        axes.set_ylim(bottom=0)
    return made.svg


def stacked(
    title: str, said: str, moments: Sequence[str], series: Series, colors: Mapping[str, str]
) -> Markup:
    """Shares of an amount over time, one on top of the other."""
    with sheet(title, said, 2.6) as made:
        axes, base = made.axes(), [0.0] * len(moments)
        for name, values in series.items():
            axes.bar(range(len(moments)), values, 0.8, bottom=base, color=COLORS[colors[name]])
            base = [low + value for low, value in zip(base, values, strict=True)]
        _moments(axes, moments)
        _counts(axes.yaxis)
    return made.svg


def bars(
    title: str,
    said: str,
    names: Sequence[object],
    series: Series,
    colors: Mapping[str, str],
    *,
    pile: bool = False,
    percent: bool = False,
) -> Markup:
    """Amounts by name: side by side, or piled up."""
    thick = 0.62 if pile else 0.78 / len(series)
    with sheet(title, said, 0.7 + len(names) * (0.3 if pile else 0.16 + 0.14 * len(series))) as made:
        axes, base = made.axes(), [0.0] * len(names)
        for place, (name, values) in enumerate(series.items()):
            rows = [row if pile else row - 0.39 + thick * (place + 0.5) for row in range(len(names))]
            axes.barh(rows, values, thick, left=base if pile else 0, color=COLORS[colors[name]])
            base = [low + value for low, value in zip(base, values, strict=True)]
        _names(axes, names)
        if percent:
            axes.set_xlim(0, 1)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f}%"))
        else:
            _counts(axes.xaxis)
    return made.svg


def percentiles(title: str, said: str, names: Sequence[object], values: Series) -> Markup:
    """Percentiles by name, on one line each."""
    with sheet(title, said, 0.8 + 0.3 * len(names)) as made:
        axes = made.axes()
        low, high = ([max(each, LEAST) for each in values[name]] for name in ("p50", "p99"))
        axes.hlines(range(len(names)), low, high, color=COLORS["grid"], linewidth=3)
        for name in PERCENTILES:
            shown = [max(each, LEAST) for each in values[name]]
            axes.plot(
                shown, range(len(names)), MARKS[name], color=COLORS[name], markersize=7, linestyle="none"
            )
        _names(axes, names)
        axes.set_xscale("log")
        _durations(axes.xaxis, *low, *high)
    return made.svg


def panels(
    title: str, said: str, days: Sequence[str], topics: Mapping[object, Mapping[str, Sequence[float]]]
) -> Markup:
    """Percentiles per day, one small diagram per topic, all to the same scale."""
    columns = min(len(topics), 2 if len(topics) < 5 else 3)
    lines = math.ceil(len(topics) / columns)
    every = [value for each in topics.values() for values in each.values() for value in values]
    with sheet(title, said, 0.4 + 1.7 * lines) as made:
        grid = made.figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place >= len(topics):
                axes.set_axis_off()
                continue
            topic, values = list(topics.items())[place]
            for name in PERCENTILES:
                shown = [
                    max(each, LEAST) for each in values[name]
                ]  # (a day without messages is not a number)
                axes.plot(shown, color=COLORS[name], marker=MARKS[name], markersize=3, linewidth=1.3)
            axes.set_title(label(topic, 84 // columns))
            _moments(axes, days, at_most=10 // columns)
            axes.set_yscale("log")
            _durations(axes.yaxis, *(max(each, LEAST) for each in every if not math.isnan(each)))
            if place + columns < len(topics):
                axes.tick_params(labelbottom=False)
            elif place + columns < lines * columns:
                axes.tick_params(labelbottom=True)
    return made.svg


def histogram(title: str, said: str, counts: Mapping[int, int], marks: Mapping[str, int]) -> Markup:
    """How many messages took how long; `marks` names the bucket that holds a percentile."""
    low, high = min(counts), max(counts)
    buckets = list(range(low, high + 1))
    with sheet(title, said, 2.6) as made:
        axes = made.axes()
        values = [counts.get(bucket, 0) for bucket in buckets]
        axes.bar([bucket + 0.5 for bucket in buckets], values, 0.94, color=COLORS["c1"], alpha=0.85)
        for bucket, names in _by_value(marks).items():
            axes.annotate(
                ", ".join(names),
                (bucket + 0.5, counts.get(bucket, 0)),
                (0, 4),
                textcoords="offset points",
                ha="center",
                color=COLORS["ink"],
            )
        axes.margins(y=0.14)
        step = max(1, math.ceil(len(buckets) / (WIDTH * 1.6)))
        edges = range(low, max(high, low + FEWEST) + 2, step)
        axes.set_xticks([*edges], [lasting(edge(bucket)) for bucket in edges])
        axes.set_xlim(low - 0.4, max(high, low + FEWEST) + 1.4)
        axes.set_xlabel("from the decision (or the insert, or deliver_at) to the publication")
        _counts(axes.yaxis)
    return made.svg


def quantiles(counts: Mapping[int, int]) -> dict[str, int]:
    """The buckets that hold the median, the 95th and the 99th percentile."""
    buckets, total = sorted(counts), sum(counts.values())
    sums = list(accumulate(counts[bucket] for bucket in buckets))
    return {
        name: next(bucket for bucket, below in zip(buckets, sums, strict=True) if below >= part * total)
        for name, part in zip(PERCENTILES, (0.5, 0.95, 0.99), strict=True)
    }


def _by_value(marks: Mapping[str, int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for name, bucket in marks.items():
        found.setdefault(bucket, []).append(name)
    return found


def _moments(axes: Axes, moments: Sequence[str], at_most: int = 10) -> None:
    step = max(1, math.ceil(len(moments) / at_most))
    places = range(0, len(moments), step)
    axes.set_xticks([*places], [moments[place] for place in places])
    middle, half = (len(moments) - 1) / 2, max(len(moments), FEWEST) / 2
    axes.set_xlim(middle - half - 0.1, middle + half + 0.1)


def _names(axes: Axes, names: Sequence[object]) -> None:
    axes.set_yticks(range(len(names)), [label(name) for name in names])
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.grid(visible=True, axis="x")


def _counts(axis: Axis) -> None:
    axis.set_major_locator(MaxNLocator(6, integer=True))
    axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))


def _durations(axis: Axis, *values: float) -> None:
    """Whole decades around the values, with their names."""
    low = math.floor(math.log10(min(values)) - 0.05)
    high = max(math.ceil(math.log10(max(values)) + 0.05), low + 2)
    axis.set_major_locator(FixedLocator([math.pow(10, power) for power in range(low, high + 1)]))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())
    # (powers of ten are no round numbers of minutes)
    axis.set_major_formatter(
        FuncFormatter(lambda value, _: lasting(value) if value < 60_000 else f"{value / 1_000:,.0f} s")
    )
    limit = axis.axes.set_xlim if axis is axis.axes.xaxis else axis.axes.set_ylim
    limit(math.pow(10, low), math.pow(10, high))
