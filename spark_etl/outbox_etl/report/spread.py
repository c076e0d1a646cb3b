"""How messages spread: over order keys, and over offsets that a publication accounts for."""

from __future__ import annotations

from functools import partial

from outbox_etl.report import charts
from outbox_etl.report.facts import Figures, column
from outbox_etl.report.html import figure, section, table
from outbox_etl.report.text import Markup, key_hash, many, name, share

KEYS = {"the largest key": "top_share", "the ten largest": "top10_share"}
SHARES = {"the largest key": "c2", "the ten largest": "c1"}


def skew(of: Figures) -> Markup:
    """The shares of the largest order keys."""
    title, anchor = "Key skew", "skew"
    if not of.skew:
        return section(title, "No message of these days has a key.", anchor=anchor)
    top = max(of.skew, key=lambda row: float(row["top_share"]))
    left = of.skew[0]["everything"] - len(of.skew)
    also = f" Not shown: {many(left, 'topic')} with fewer messages." if left else ""
    picture = figure(
        "Share of the largest order keys per topic",
        f"The largest order key of a day had {share(top['top_share'])} of the messages of {name(top['topic'])}, on "
        f"average; one partition carries all of that.{also}",
        partial(
            charts.bars,
            names=column(of.skew, "topic"),
            series={label: column(of.skew, each) for label, each in KEYS.items()},
            colors=SHARES,
            percent=True,
        ),
        ("topic", "messages with a key", "largest", "ten largest", "most on one day", "day", "key (hash)"),
        [
            (
                name(row["topic"]),
                row["messages"],
                *(share(row[each]) for each in ("top_share", "top10_share", "peak_share")),
                row["peak_day"],
                key_hash(row["peak_key"]),
            )
            for row in of.skew
        ],
        legend=SHARES,
    )
    return section(title, picture, anchor=anchor)


def gaps(of: Figures) -> Markup:
    """Offsets that no publication accounts for, and publications after a message's first."""
    title, anchor = "Gaps", "gaps"
    if not of.gaps:
        return section(title, "No publication was recorded in these days.", anchor=anchor)
    first = of.gaps[0]
    said = (
        f"{many(first['everything'], 'partition')}: {many(first['all_missing'], 'offset')} that no publication "
        f"accounts for, {many(first['all_repeated'], 'repeated publication')}."
    )
    rows = [
        (
            name(row["topic"]),
            row["partition"],
            f"{row['first_offset']:,} to {row['last_offset']:,}",
            *(row[each] for each in ("seen", "missing", "repeated")),
        )
        for row in of.gaps
        if row["missing"] or row["repeated"]
    ]
    if not rows:
        return section(title, said, anchor=anchor)
    head = ("topic", "partition", "offsets", "recorded", "unaccounted", "repeated")
    why = (
        "An offset without a publication is not a loss by itself: other producers and the markers of transactions take "
        "offsets too. `outbox etl reconcile` reads Kafka and reports losses."
    )
    return section(title, said, why, table(head, rows, "The partitions with most"), anchor=anchor)
