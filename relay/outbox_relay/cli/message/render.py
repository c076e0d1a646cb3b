"""Shows messages: a list of them, or one's whole life; bodies only where they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from outbox_relay.cli import output
from outbox_relay.operations import archive, message_story
from outbox_relay.operations.archive import Archive
from outbox_relay.operations.messages import Life, Row
from outbox_relay.text import formatting

LONGEST_CELL = 24
BYTES = ("key", "order_key")


def as_document(row: Row) -> dict[str, Any]:
    """One message for machines: bytes as text where they are printable UTF-8, else {"base64": …}."""
    document = {
        name: formatting.bytes_for_json(value) if name in BYTES else _plain(value)
        for name, value in row.items()
    }
    return {**document, "xid": int(row["xid"])}


def _plain(value: Any) -> Any:
    """Keep what JSON has; a UUID becomes text."""
    return value if isinstance(value, (bool, int, float, list, dict, datetime, type(None))) else str(value)


def show_list(rows: Sequence[Row], limit: int, more: bool) -> None:
    """Print messages as a table, newest first."""
    output.table(
        ["id", "status", "topic", "key", "tags", "kafka", "born"],
        [
            (
                row["id"],
                f"{row['status']} {row['waiting']}" if row["waiting"] else row["status"],
                row["topic"],
                _short(formatting.bytes_for_people(row["key"])),
                _short(", ".join(row["tags"]) or None),
                _place(row),
                row["born_at"],
            )
            for row in rows
        ],
        right=("id",),
        keep=("id", "status", "topic", "key"),
    )
    if more:
        click.echo(f"the newest {limit}; there are more: --limit N, or narrow the search", err=True)


def _short(text: str | None) -> str | None:
    if text is None or len(text) <= LONGEST_CELL:
        return text
    return f"{text[: LONGEST_CELL - 1]}…"


def _place(row: Row) -> str | None:
    return None if row["offset"] is None else f"{row['partition']}/{row['offset']}"


def life_document(life: Life, consumed: Sequence[Row], kept: Archive) -> dict[str, Any]:
    """One message's life for machines."""
    document = {
        **as_document(life.message),
        **life.routing,
        "events": life.events,
        "publications": life.publications,
        "consumers": [{name: _plain(value) for name, value in one.items()} for one in consumed],
    }
    document["history"] = {name: _plain(value) for name, value in kept.document().items()}
    document["hold"] = None if life.hold is None else life.hold.document()
    if life.content is not None:
        document["headers"] = life.content["headers"]
        document["body"] = formatting.bytes_for_json(life.content["body"])
    return document


def show_life(
    life: Life, consumed: Sequence[Row], steps: Sequence[message_story.Step], kept: Archive
) -> None:
    """Print everything about one message."""
    output.pairs([*message_story.facts(life), ("kept in", kept.kept)])
    click.echo()
    for entry in message_story.past(life, consumed):
        click.echo(f"{formatting.cell(entry.at)}  {entry.text}")
    for one in consumed:
        if one["state"] not in ("applied", "retrying", "dead"):
            click.echo(
                f"consumer group {formatting.printable(one['consumer_group'])}: {message_story.state_in_group(one)}"
            )
    for certificate in kept.certificates:
        click.secho(archive.sentence(certificate), fg="red" if certificate["problems"] else None)
    for step in steps:
        click.secho(f"next  {step.text}", fg="red" if step.is_alarm else None)
        for line in step.commands:
            click.echo(f"      {line}")
    if life.content is not None:
        click.echo()
        _content(life.content)


def _content(content: Row) -> None:
    headers = content["headers"]
    if headers is not None and not isinstance(headers, dict):
        click.echo(f"headers, which are not texts by name: {formatting.printable(str(headers))}")
        headers = None
    for name, value in (headers or {}).items():
        click.echo(f"header {formatting.printable(name)}: {formatting.cell(value)}")
    body = content["body"]
    if body is None:
        click.echo("body: none (a tombstone)")
        return
    click.echo(f"body: {formatting.many(len(body), 'byte')}")
    click.echo(formatting.bytes_for_people(body))
