"""Shows records that were read from Kafka, for people and for machines."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Message as Record

from outbox_relay.operations.tail import headers_of, moment_of
from outbox_relay.text import formatting


def document(record: Record) -> dict[str, Any]:
    """One record for machines: bytes as text where they are printable UTF-8, else {"base64": …}."""
    return {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": moment_of(record),
        "key": formatting.bytes_for_json(record.key()),
        "headers": [
            {"name": name, "value": formatting.bytes_for_json(value)} for name, value in headers_of(record)
        ],
        "body": formatting.bytes_for_json(record.value()),
    }


def lines(record: Record) -> list[str]:
    """One record for people: its place, its headers, its body; control characters as escapes."""
    when = moment_of(record)
    head = f"partition {record.partition()}  offset {record.offset()}  {formatting.cell(when)}"
    shown = [f"{head}  key {formatting.cell(record.key())}"]
    shown += [
        f"  {formatting.printable(name)}: {formatting.cell(value)}" for name, value in headers_of(record)
    ]
    body = record.value()
    if body is None:
        return [*shown, "  (no body: a tombstone)"]
    return [
        *shown,
        *(
            f"  {formatting.printable(line)}"
            for line in (formatting.bytes_for_people(body) or "").split("\n")
        ),
    ]
