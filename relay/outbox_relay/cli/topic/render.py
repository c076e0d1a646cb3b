"""Shows topics: one next to what Kafka has, or the whole registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.operations.kafka_topics import KafkaTopic
from outbox_relay.operations.topics import Registered
from outbox_relay.text import formatting


def show_list(topics: Sequence[Registered]) -> None:
    """Print the registry as a table."""
    if not topics:
        click.echo("no topic is registered; create one: outbox topic create NAME")
        return
    output.table(
        ["topic", "type", "partitions", "selector", "max bytes", "skips ahead", "registered", "paused"],
        [
            (
                one.name,
                one.message_type,
                one.partitions,
                one.selector or "murmur2",
                formatting.count(one.max_message_bytes),
                "yes" if one.skip_ahead else "no",
                one.registered_at,
                one.paused_at,
            )
            for one in topics
        ],
        right=("partitions", "max bytes"),
        keep=("topic", "type", "partitions"),
    )


def one(registered: Registered, found: KafkaTopic | None, as_json: bool, said: str = "") -> None:
    """Print one topic, and what to know where Kafka and the registry differ."""
    if as_json:
        output.emit_json({**asdict(registered), "kafka": None if found is None else asdict(found)})
        return
    if said:
        click.echo(said)
    rows: list[tuple[str, Any]] = [
        ("topic", registered.name),
        ("type", registered.message_type),
        ("pinned partitions", registered.partitions),
        ("selector", registered.selector or "murmur2 (default)"),
        ("max message", f"{formatting.count(registered.max_message_bytes)} bytes"),
        ("a failed message", "holds no others" if registered.skip_ahead else "holds its order key"),
        ("registered", registered.registered_at),
    ]
    if registered.paused_at is not None:
        why = formatting.printable(registered.pause_reason or "")
        rows.append(("paused", f"{formatting.cell(registered.paused_at)}, by {registered.paused_by}: {why}"))
    if registered.pause_when_grown:
        rows.append(("on growth", "pauses"))
    if registered.repartition_to is not None:
        rows.append(
            (
                "held by",
                f"outbox topic repartition; to put it back: outbox topic repartition {registered.name} --abort",
            )
        )
    if found is not None:
        limit = (
            "not readable"
            if found.max_message_bytes is None
            else f"{formatting.count(found.max_message_bytes)} bytes"
        )
        rows += [
            ("Kafka partitions", found.partitions),
            ("Kafka replicas", found.replication_factor),
            ("Kafka max message", limit),
        ]
    output.pairs(rows)
    if found is not None and found.partitions > registered.partitions:
        click.echo(
            f"note: Kafka has {formatting.many(found.partitions, 'partition')}; keys stay on the first "
            f"{registered.partitions}, which are pinned; to use all: outbox topic repartition {registered.name} "
            f"--to {found.partitions}"
        )
    if found is not None and found.partitions < registered.partitions:
        click.echo(
            f"warning: Kafka has {formatting.many(found.partitions, 'partition')}, fewer than the "
            f"{registered.partitions} pinned: the relay cannot publish to it"
        )
