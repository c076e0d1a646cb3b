"""One message's life as a page for a browser: self-contained, nothing is loaded and nothing runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from outbox_relay.operations import archive, message_story
from outbox_relay.operations.archive import Archive
from outbox_relay.operations.messages import Life, Row
from outbox_relay.text import durations, formatting

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Whatever a key, a remark or an error holds, a browser neither runs nor fetches it."""
KIND_COLORS = {
    "born": "calm",
    "check": "calm",
    "decision": "calm",
    "wait": "wait",
    "published": "good",
    "consumer": "good",
    "failure": "bad",
}
GROUP_COLORS = {"applied": "good", "dead": "bad", "retrying": "wait", "waiting": "wait"}
STATUS_COLORS = {"PUBLISHED": "good", "DEAD": "bad", "EXHAUSTED": "bad"}
LONGEST_BODY = 64 * 1024
"""Characters of a body that are shown."""


def document(
    life: Life, consumed: Sequence[Row], steps: Sequence[message_story.Step], kept: Archive, place: str
) -> str:
    """Return a page that needs nothing else, as `outbox message show --html` writes it.

    Args:
        life: the message; with headers and body only if they were asked for.
        consumed: what consumer groups did with it.
        steps: what happens next.
        kept: where it is kept, and which warehouses hold it.
        place: the database, as a person names it.
    """
    style = resources.files("outbox_relay").joinpath("console/style.css").read_text(encoding="utf-8")
    row = life.message
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Message {_text(row["id"])}: {_text(_status(row))}</title>
<style>
{style}</style>
</head>
<body>
<main>
{sections(life, consumed, steps, kept, place)}
<footer>Times are UTC, by the clocks of the servers. Made {formatting.moment(datetime.now(UTC))}.</footer>
</main>
</body>
</html>
"""


def sections(
    life: Life, consumed: Sequence[Row], steps: Sequence[message_story.Step], kept: Archive, place: str
) -> str:
    """Return what a page about a message holds; the console has it among its own parts. Arguments as of `document`."""
    row = life.message
    badge = f'<span class="badge {STATUS_COLORS.get(row["status"], "calm")}">{_text(_status(row))}</span>'
    parts = [
        f"<header><p class=soft>Message {_text(row['id'])} of {_text(place)}</p>",
        f"<h1>{_text(row['topic'])} {badge}</h1><p class=soft>{_text(row['message_id'])}</p></header>",
        _section("What is next", _steps(steps)) if steps else "",
        _section("What happened", _timeline(message_story.past(life, consumed))),
        _section("Consumer groups", _groups(consumed)) if consumed else "",
        _section("Facts", _pairs(message_story.facts(life))),
        _section("History and warehouses", _archive(kept)),
        _section("Headers and body", _content(life.content)) if life.content is not None else "",
    ]
    return "\n".join(part for part in parts if part)


def _status(row: Row) -> str:
    return f"{row['status']} {row['waiting'] or ''}".strip()


def _text(value: Any) -> str:
    return escape(formatting.cell(value))


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>\n{content}\n</section>"


def _pairs(rows: Iterable[tuple[str, Any]]) -> str:
    shown = (f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in rows if value is not None)
    return f"<dl>{''.join(shown)}</dl>"


def _steps(steps: Sequence[message_story.Step]) -> str:
    shown = []
    for step in steps:
        kind = "bad" if step.is_alarm else "calm"
        commands = escape("\n".join(formatting.cell(line) for line in step.commands))
        shown.append(
            f'<p class="{kind}">{_text(step.text)}</p>' + (f"<pre>{commands}</pre>" if commands else "")
        )
    return "\n".join(shown)


def _timeline(entries: Sequence[message_story.Happening]) -> str:
    shown = []
    before: datetime | None = None
    for entry in entries:
        later = "" if before is None else f"<span class=later>{_later(entry.at, before)}</span>"
        before = entry.at
        shown.append(
            f'<li class="{KIND_COLORS[entry.kind]}">'
            f'<time datetime="{formatting.rfc3339(entry.at)}">{formatting.moment(entry.at)}</time>'
            f"{later}<p>{_text(entry.text)}</p></li>"
        )
    return "<ol>\n" + "\n".join(shown) + "\n</ol>"


def _later(at: datetime, before: datetime) -> str:
    seconds = (at - before).total_seconds()
    return f"+{1000 * seconds:.0f} ms" if seconds < 1 else f"+{durations.about(seconds)}"


def _groups(consumed: Sequence[Row]) -> str:
    head = "".join(f"<th scope=col>{name}</th>" for name in ("group", "where it is", "error", "behind it"))
    rows = "\n".join(
        f"<tr><td>{_text(one['consumer_group'])}</td><td class={GROUP_COLORS.get(one['state'], 'soft')}>"
        f"{_text(message_story.state_in_group(one))}</td><td>{_text(one['failure'])}</td>"
        f"<td>{_text(one['behind'] or None)}</td></tr>"
        for one in consumed
    )
    return f"<div class=wide tabindex=0><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"


def _archive(kept: Archive) -> str:
    shown = [f"<p>Kept in partition {_text(kept.kept)}.</p>"] if kept.kept is not None else []
    for one in kept.certificates:
        shown.append(f'<p class="{"bad" if one["problems"] else "good"}">{_text(archive.sentence(one))}</p>')
    if not kept.certificates:
        shown.append("<p class=soft>No warehouse has a certificate of its transaction.</p>")
    return "\n".join(shown)


def _content(content: Row) -> str:
    headers = content["headers"]
    named = headers.items() if isinstance(headers, dict) else [("headers", headers)] if headers else []
    body = formatting.bytes_for_people(content["body"])
    if body is None:
        return _pairs(named) + "<p>No body (a tombstone).</p>"
    cut = (
        f"<p class=soft>The first {LONGEST_BODY:,} of {len(body):,} characters.</p>"
        if len(body) > LONGEST_BODY
        else ""
    )
    return f"{_pairs(named)}<pre>{escape(body[:LONGEST_BODY])}</pre>{cut}"
