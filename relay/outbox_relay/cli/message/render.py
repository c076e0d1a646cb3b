"""Shows messages: a list of them, or one's whole life; bodies only where they were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from outbox_relay.cli import output
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


def life_document(life: Life) -> dict[str, Any]:
    """One message's life for machines."""
    document = {
        **as_document(life.message),
        **life.routing,
        "events": life.events,
        "publications": life.publications,
    }
    document["hold"] = None if life.hold is None else life.hold.document()
    if life.content is not None:
        document["headers"] = life.content["headers"]
        document["body"] = formatting.bytes_for_json(life.content["body"])
    return document


def show_life(life: Life) -> None:
    """Print everything about one message."""
    row = life.message
    output.pairs(
        [
            ("message id", row["message_id"]),
            ("id", row["id"]),
            ("status", row["status"]),
            ("remark", row["remark"]),
            ("topic", row["topic"]),
            ("partition", row["partition"]),
            ("offset", row["offset"]),
            ("key", row["key"]),
            ("order key", row["order_key"]),
            ("queue", life.routing.get("queue")),
            ("selector", life.routing.get("selector")),
            ("tags", row["tags"] or None),
            ("index keys", row["index_keys"] or None),
            ("producer group", row["producer_group"]),
            ("transaction id", row["transaction_id"]),
            ("checker", row["checker"]),
            ("business", " ".join(filter(None, (row["biz_type"], row["biz_id"]))) or None),
            ("trace", life.routing.get("traceparent")),
            ("lane", row["lane"]),
            ("position", row["position"]),
            ("xid", row["xid"]),
        ]
    )
    click.echo()
    for when, what in _story(life):
        click.echo(f"{formatting.cell(when)}  {what}")
    if life.hold is not None:
        click.secho(f"next  {life.hold.hold_up(row['id'])}", fg="red")
        for line in life.hold.repair():
            click.echo(f"      {line}")
    if row["waiting"] == "expired":
        click.secho("next  EXPIRED: its deliver_before is over, so it is never published", fg="red")
        click.echo(f"      give it up: outbox holds skip {row['id']} --reason TEXT")
    if life.content is not None:
        click.echo()
        _content(life.content)


def _story(life: Life) -> list[tuple[datetime, str]]:
    """What happened, in order of time."""
    row = life.message
    story = [(event["happened_at"], _event(event)) for event in life.events]
    if not any(event["from_state"] is None and event["kind"] == "transition" for event in life.events):
        story.append((row["born_at"], "born COMMITTED"))
    if row["deliver_at"] is not None:
        story.append((row["deliver_at"], "not published before this time (deliver_at)"))
    if row["deliver_before"] is not None:
        story.append((row["deliver_before"], "not published from this time on (deliver_before)"))
    if row["waiting"] is not None:
        until = "" if row["due_at"] is None else f", due at {formatting.cell(row['due_at'])}"
        story.append((row["born_at"], f"waiting: {row['waiting']}{until}"))
    for number, one in enumerate(life.publications):
        again = " again" if number else ""
        place = f"{row['topic']}, partition {one['partition']}, offset {one['offset']}"
        batch = f"(epoch {one['epoch']}, batch {one['batch']})"
        story.append((one["published_at"], f"published{again} to {place} {batch}"))
    return sorted(story, key=lambda entry: entry[0])


def _event(event: Row) -> str:
    reason = "" if event["reason"] is None else f": {formatting.printable(event['reason'])}"
    actor = formatting.printable(event["actor"])
    if event["kind"] == "check":
        return f"checked by {actor}, answer {event['answer'] or '-'}{reason}"
    if event["from_state"] is None:
        return f"born {event['to_state']} by {actor}{reason}"
    return f"{event['from_state']} → {event['to_state']} by {actor}{reason}"


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
