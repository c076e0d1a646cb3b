"""What the job returns, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.text import formatting

NUMBERS = ("postgres", "kafka", "warehouse", "foreign", "no_longer_in_kafka")


def show(command: str, answer: Mapping[str, Any]) -> None:
    """Print the answer of one command."""
    if command == "status":
        _status(answer)
    elif command == "reconcile":
        _reconcile(answer)
    elif command == "maintain":
        _maintain(answer)
    else:
        output.pairs([(name.replace("_", " "), _told(name, value)) for name, value in answer.items()])


def _told(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return f"{formatting.count(len(value))}: {value[0]} to {value[-1]}" if value else None
    if isinstance(value, dict):
        return "; ".join(f"{of}: {why}" for of, why in value.items())
    if name == "seconds":
        return formatting.seconds(value)
    # Transactions are named, rows are counted.
    if isinstance(value, (int, float)) and not name.startswith("window"):
        return formatting.count(value)
    return value if isinstance(value, (str, int)) else str(value)


def _status(answer: Mapping[str, Any]) -> None:
    mark = answer.get("watermark")
    if not mark:
        output.pairs([("target", answer.get("target"))])
        click.echo("empty: `outbox etl run` fills it")
        return
    cluster = mark.get("cluster") or {}
    output.pairs(
        [
            ("target", answer.get("target")),
            ("transactions below", mark.get("hi")),
            ("ids up to", mark.get("top")),
            ("cluster", cluster.get("system_identifier")),
            ("timeline", cluster.get("timeline")),
        ]
    )


def _maintain(answer: Mapping[str, Any]) -> None:
    numbers = ("files_before", "files", "bytes", "deleted", "orphans")
    titles = ("files before", "now", "bytes", "files deleted", "orphans deleted")
    output.table(
        ["table", *titles],
        [
            (row["table"], *(formatting.count(row[name]) for name in numbers))
            for row in answer.get("tables") or []
        ],
        right=titles,
    )
    output.pairs(
        [
            ("target", answer.get("target")),
            ("snapshots expired", formatting.count(answer.get("expired"))),
            ("seconds", formatting.seconds(answer.get("seconds"))),
        ]
    )


def _reconcile(answer: Mapping[str, Any]) -> None:
    partitions = answer.get("partitions") or []
    if partitions:
        columns = [name for name in NUMBERS if name in partitions[0]]
        output.table(
            ["topic", "partition", *(name.replace("_", " ") for name in columns), "checksums"],
            [
                (
                    row["topic"],
                    row["partition"],
                    *(formatting.count(row[name]) for name in columns),
                    "ok" if _agree(row) else "differ",
                )
                for row in partitions
            ],
            right=("partition", *(name.replace("_", " ") for name in columns)),
        )
    for finding in answer.get("found") or []:
        click.echo(_finding(finding))
    for finding in answer.get("allowed") or []:
        click.echo(f"allowed: {_finding(finding)}")
    listed = len(answer.get("found") or [])
    if listed < answer.get("problems", 0):
        click.echo(f"… and {formatting.count(answer['problems'] - listed)} more (--limit)")
    verdict = "certified" if answer.get("certified") else "nothing new to prove"
    output.pairs(
        [
            ("target", answer.get("target")),
            ("transactions", f"{answer.get('window_lo')} to {answer.get('window_hi')}"),
            ("messages", formatting.count(answer.get("messages"))),
            ("records", formatting.count(answer.get("records"))),
            *((name.replace("_", " "), formatting.count(value)) for name, value in _notes(answer)),
            ("problems", formatting.count(answer.get("problems"))),
            ("verdict", "NOT certified" if answer.get("problems") else verdict),
            ("seconds", formatting.seconds(answer.get("seconds"))),
        ]
    )


def _notes(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted((answer.get("notes") or {}).items())


def _agree(row: Mapping[str, Any]) -> bool:
    """Whether Kafka's sum is that of the fuller of the other two: history may have been dropped from PostgreSQL."""
    fuller = "warehouse" if row["warehouse"] > row["postgres"] else "postgres"
    same: bool = row[f"{fuller}_checksum"] == row["kafka_checksum"]
    return same


def _finding(finding: Mapping[str, Any]) -> str:
    place = ""
    if finding.get("topic") is not None:
        place = f" {finding['topic']}[{finding['partition']}]@{finding['offset']}"
    text = (
        f"{finding['kind']} in {finding['store']}: {finding['message_id'] or '-'}{place}: {finding['detail']}"
    )
    return formatting.printable(text)
