"""How much flowed, and how fast: throughput and publish latency, each as a sentence, a picture and its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from outbox_etl.report import charts
from outbox_etl.report.facts import Figures, Row, column, every_day, folded
from outbox_etl.report.html import figure, section
from outbox_etl.report.text import Markup, edge, lasting, many, name, share

FLOW = {"sent": "c2", "published": "c1"}
SPANS = {
    86_400: ("day", "%m-%d", "%Y-%m-%d"),
    3_600: ("hour", "%m-%d %H:00", "%Y-%m-%d %H:%M"),
    60: ("minute", "%H:%M", "%Y-%m-%d %H:%M"),
}
"""What one point is, by its seconds; a moment on the axis, and in a sentence or table."""


def throughput(of: Figures) -> Markup:
    """Messages sent and published, over time and per topic."""
    if not of.rate:
        return section("Throughput", "Nothing was sent or published in these days.", anchor="throughput")
    return section("Throughput", _over_time(of), _per_topic(of), anchor="throughput")


def _over_time(of: Figures) -> Markup:
    span, short, form = SPANS[of.step]
    points = _continuous(of.rate, of.step)
    moments = [datetime.fromtimestamp(moment, UTC) for moment, _, _ in points]
    sent, published = [point[1] for point in points], [point[2] for point in points]
    most = max(range(len(points)), key=lambda place: published[place])
    said = f"Sent: {many(sum(sent), 'message')}; published: {sum(published):,}."
    if len(points) > 1:
        said += f" The most in one {span} were {published[most]:,} published ({moments[most]:{form}})."
    return figure(
        f"Messages sent and published per {span}",
        said,
        partial(
            charts.over_time,
            moments=[f"{moment:{short}}" for moment in moments],
            filled=published,
            line=sent,
        ),
        (f"{span} (UTC)", "sent", "published"),
        [(f"{when:{form}}", *each) for when, (_, *each) in zip(moments, points, strict=True) if any(each)],
        legend=FLOW,
    )


def _per_topic(of: Figures) -> Markup:
    rows = folded(of.topics, "topic", "sent", "published", "bytes")
    return figure(
        "Messages sent and published per topic",
        f"The topic with most messages is {name(rows[0]['topic'])}: {rows[0]['published']:,} published.",
        partial(
            charts.bars,
            names=column(rows, "topic"),
            series={each: column(rows, each) for each in FLOW},
            colors=FLOW,
        ),
        ("topic", "sent", "published", "bytes published"),
        [(name(row["topic"]), row["sent"], row["published"], row["bytes"]) for row in rows],
        legend=FLOW,
    )


def latency(of: Figures) -> Markup:
    """How long messages took to be published: all of them as a histogram, and percentiles per topic and day."""
    if not of.latency or not of.histogram:
        return section("Publish latency", "Nothing was published in these days.", anchor="latency")
    return section("Publish latency", _distribution(of), _percentiles(of), anchor="latency")


def _distribution(of: Figures) -> Markup:
    total, places = sum(of.histogram.values()), charts.quantiles(of.histogram)
    below = {each: lasting(edge(bucket + 1)) for each, bucket in places.items()}
    rows: list[Sequence[object]] = []
    reached = 0
    for bucket in sorted(of.histogram):
        reached += of.histogram[bucket]
        limits = f"{lasting(edge(bucket))} to {lasting(edge(bucket + 1))}"
        rows.append((limits, of.histogram[bucket], share(reached / total)))
    return figure(
        "How long messages took to be published",
        f"Half of {many(total, 'message')} were published within {below['p50']}, 95% within {below['p95']} and 99% "
        f"within {below['p99']} (upper edges of the bars) of the moment from which on they could be.",
        partial(charts.histogram, counts=of.histogram, marks=places),
        ("time", "messages", "up to here"),
        rows,
        legend={},
    )


def _percentiles(of: Figures) -> Markup:
    topics = list(dict.fromkeys(row["topic"] for row in of.latency))
    days = every_day([row["day"] for row in of.latency])
    found = {(row["topic"], row["day"]): row for row in of.latency}
    left = of.latency[0]["everything"] - len(topics)
    also = f" Not shown: {many(left, 'topic')} with fewer messages." if left else ""
    if len(days) > 1:
        missing = dict.fromkeys(("p50_ms", "p95_ms", "p99_ms"), float("nan"))
        lines = {
            topic: {
                each: [float(found.get((topic, day), missing)[f"{each}_ms"]) for day in days]
                for each in charts.PERCENTILES
            }
            for topic in topics
        }
        said = f"Percentiles of each topic per day, all to one scale.{also}"
        draw = partial(charts.panels, days=[f"{day:%m-%d}" for day in days], topics=lines)
    else:
        values = {each: [float(row[f"{each}_ms"]) for row in of.latency] for each in charts.PERCENTILES}
        said = f"Percentiles of each topic on {days[0]}.{also}"
        draw = partial(charts.percentiles, names=topics, values=values)
    shown = ("p50_ms", "p95_ms", "p99_ms", "max_ms")
    return figure(
        "Publish latency per topic" + (" and day" if len(days) > 1 else ""),
        said,
        draw,
        ("topic", "day", "published", "p50", "p95", "p99", "longest"),
        [
            (name(row["topic"]), row["day"], row["published"], *(lasting(row[each]) for each in shown))
            for row in of.latency
        ],
        legend={"p50 ●": "p50", "p95 ■": "p95", "p99 ▲": "p99"},
    )


def _continuous(rows: Sequence[Row], step: int) -> list[tuple[int, int, int]]:
    """Moment, sent and published, in steps; 0 where nothing happened."""
    sums: dict[int, list[int]] = {}
    for row in rows:
        point = sums.setdefault(row["moment"] // step * step, [0, 0])
        point[0] += row["sent"]
        point[1] += row["published"]
    nothing = [0, 0]
    moments = range(min(sums), max(sums) + 1, step)
    return [
        (moment, int(sums.get(moment, nothing)[0]), int(sums.get(moment, nothing)[1])) for moment in moments
    ]
