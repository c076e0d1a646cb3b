"""What was proven: the result of a reconcile with every finding, and the certificates that there are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from outbox_etl.report.facts import Facts, Row
from outbox_etl.report.html import badge, section, table
from outbox_etl.report.text import Markup, cell, many

FOUND = 100
"""Findings that are listed."""
PARTITIONS = 200
"""Partitions that are listed: those that differ come first."""
SUMS = ("postgres", "kafka", "warehouse")


def conclusion(answer: Row) -> tuple[str, str]:
    """A reconcile's result in words, and whether it is `good`, `bad` or `calm`."""
    if answer.get("problems"):
        return f"{many(answer['problems'], 'problem')}: not proven", "bad"
    return ("proven", "good") if answer.get("certified") else ("nothing new to prove", "calm")


def proof(facts: Facts) -> Iterator[Markup]:
    """The sections of it."""
    if facts.run.command == "reconcile" and facts.run.answer:
        yield _reconciled(facts.run.answer)
    if facts.certificates:
        yield _certificates(facts)


def _reconciled(answer: Row) -> Markup:
    text, kind = conclusion(answer)
    window = f"transactions {answer['window_lo']} to {answer['window_hi']}"
    said = Markup(
        f"<p>{badge(text, kind)} {many(answer['messages'], 'message')} of {window}, "
        f"{many(answer['records'], 'record')} read from Kafka.</p>"
    )
    parts = [said]
    if answer["totals"]:
        parts.append(table(("problem", "times"), sorted(answer["totals"].items())))
    for name, caption in (("found", "Findings"), ("allowed", "Allowed findings")):
        if found := answer[name]:
            listed = found[:FOUND]
            count = answer["problems"] if name == "found" else len(found)
            more = f"{caption}: the first {len(listed):,} of {count:,}" if count > len(listed) else caption
            parts.append(table(("what", "where", "message", "place", "detail"), map(_finding, listed), more))
    if answer["notes"]:
        notes = sorted((each.replace("_", " "), count) for each, count in answer["notes"].items())
        parts.append(table(("note", "times"), notes))
    if answer["partitions"]:
        parts.append(_partitions(answer))
    return section("Reconcile", *parts, anchor="reconcile")


def _finding(found: Mapping[str, object]) -> tuple[object, ...]:
    place = f"{found['topic']}[{found['partition']}]" if found["topic"] is not None else "–"
    if found["offset"] is not None:
        place += f" @ {found['offset']}"
    kind = str(found["kind"]).replace("_", " ")
    message = Markup(f"<code>{cell(found['message_id'])}</code>")
    return badge(kind, "bad"), found["store"], message, place, found["detail"]


def _partitions(answer: Row) -> Markup:
    rows = sorted(answer["partitions"], key=_agree)
    shown = [
        (
            row["topic"],
            row["partition"],
            badge("agree", "good") if _agree(row) else badge("differ", "bad"),
            *(row[name] for name in (*SUMS, "foreign", "no_longer_in_kafka")),
            Markup(f"<code>{cell(row['kafka_checksum'])}</code>"),
        )
        for row in rows[:PARTITIONS]
    ]
    more = f", the first {PARTITIONS}" if len(rows) > PARTITIONS else ""
    head = (
        "topic",
        "partition",
        "sums",
        "PostgreSQL",
        "Kafka",
        "warehouse",
        "foreign",
        "expired",
        "checksum",
    )
    return table(head, shown, f"Messages and order-free checksums of {many(len(rows), 'partition')}{more}")


def _agree(row: Row) -> bool:
    """Whether Kafka's sum is that of the fuller of the other two: history may have been dropped from PostgreSQL."""
    fuller = "warehouse" if row["warehouse"] > row["postgres"] else "postgres"
    return bool(row[f"{fuller}_checksum"] == row["kafka_checksum"])


def _certificates(facts: Facts) -> Markup:
    rows = [
        (
            f"{each['lo']} to {each['hi']}",
            badge("proven", "good") if not each["problems"] else badge("not proven", "bad"),
            each["verified_at"],
            each["messages"],
            each["problems"],
            each["doubled"],
            each["topics"],
            each["partitions"],
            Markup(f"<code>{cell(each['checksum'])}</code>"),
        )
        for each in facts.certificates
    ]
    head = (
        "transactions",
        "result",
        "verified",
        "messages",
        "problems",
        "doubled",
        "topics",
        "partitions",
        "checksum",
    )
    return section(
        "Certificates",
        "What was verified of this warehouse, newest first. `outbox history drop` drops a partition of PostgreSQL "
        "only where such certificates cover it.",
        table(head, rows),
        anchor="certificates",
    )
