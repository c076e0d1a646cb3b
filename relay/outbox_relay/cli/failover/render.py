"""Shows servers that took over, and messages that only Kafka has."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from outbox_relay.cli import output
from outbox_relay.operations.failovers import Failover
from outbox_relay.operations.lost_messages import LostMessage, ScanCounts
from outbox_relay.text import formatting


def servers(found: list[Failover]) -> None:
    """Print a line for each server that took over."""
    output.table(
        ["timeline", "server", "took over from", "timeline before", "noticed", "scanned", "lost"],
        [
            (
                one.timeline,
                one.system_identifier,
                "itself, or a copy"
                if one.from_system_identifier == one.system_identifier
                else one.from_system_identifier,
                one.from_timeline,
                one.noticed_at,
                one.scanned_at,
                formatting.count(one.lost) if one.lost is not None else None,
            )
            for one in found
        ],
        right=("timeline", "timeline before", "lost"),
        keep=("timeline", "server", "lost"),
    )


def line(lost: LostMessage) -> str:
    """Describe a lost message in one line; never its body."""
    place = f"{formatting.printable(lost.topic)} partition {lost.partition} offset {lost.offset}"
    return (
        f"{lost.message_id}  {place}  {formatting.cell(lost.published_at)}  key {formatting.cell(lost.key)}  "
        f"{lost.what}"
    )


def document(lost: LostMessage) -> dict[str, Any]:
    """Return a lost message for machines."""
    return {**asdict(lost), "key": formatting.bytes_for_json(lost.key)}


def summary(counts: ScanCounts) -> str:
    """Return what a scan read and found."""
    dropped = f", {formatting.count(counts.dropped)} of dropped history" if counts.dropped else ""
    others = f", {formatting.count(counts.without_id)} not written by an outbox" if counts.without_id else ""
    return (
        f"{formatting.many(counts.records, 'record')} read{dropped}{others}: "
        f"{formatting.many(counts.lost, 'message')} lost"
    )


def remarks(counts: ScanCounts) -> list[str]:
    """Name the topics that a scan could not read, or did not."""
    found = []
    if counts.missing:
        found.append(f"not in Kafka, so not read: {', '.join(map(formatting.printable, counts.missing))}")
    if counts.not_read:
        found.append(
            f"not read, with records of that time: {', '.join(map(formatting.printable, counts.not_read))}\n"
            "if this outbox published to one of them: outbox failover scan --topic NAME"
        )
    return found
