"""Pieces of HTML: tables, figures with their legend and table, sections."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date

from outbox_etl.report.text import Markup, Quantity, cell

OPEN = 10
"""Rows up to which a picture's table is shown at once; a longer one is opened by the reader."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> Markup:
    """A table; numbers to the right."""
    title = f"<caption>{cell(caption)}</caption>" if caption else ""
    whole = list(rows)
    numbers = [all(_is_number(row[column]) for row in whole) for column in range(len(head))]
    heads = "".join(
        f'<th scope="col"{" class=n" if right else ""}>{cell(text)}</th>'
        for text, right in zip(head, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>\n" for row in whole)
    return Markup(
        f'<div class="wide"><table>{title}<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>'
    )


def _cell(value: object) -> str:
    kind = "n" if _is_number(value) else "d" if isinstance(value, date) else ""
    return f"<td{f' class={kind}' if kind else ''}>{cell(value)}</td>"


def _is_number(value: object) -> bool:
    """Whether it stands to the right: a count, or a share or a time that begins with a digit."""
    return isinstance(value, Quantity) or (isinstance(value, int | float) and not isinstance(value, bool))


def pairs(rows: Iterable[tuple[str, object]]) -> Markup:
    """Names and values."""
    return Markup(
        f"<dl>{''.join(f'<dt>{cell(name)}</dt><dd>{cell(value)}</dd>' for name, value in rows)}</dl>"
    )


def figure(
    title: str,
    said: str,
    draw: Callable[[str, str], Markup],
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    legend: Mapping[str, str],
) -> Markup:
    """A picture with its legend, a sentence on it, and its numbers as a table; `draw` is given title and sentence."""
    keys = "".join(
        f'<li><i style="background:var(--{color})"></i>{cell(name)}</li>' for name, color in legend.items()
    )
    shown = f"<ul class=legend>{keys}</ul>" if keys else ""
    opened = " open" if len(rows) <= OPEN else ""
    return Markup(
        f"<figure><h3>{cell(title)}</h3>{shown}{draw(title, said)}<figcaption>{cell(said)}</figcaption>"
        f"<details{opened}><summary>The numbers</summary>{table(head, rows)}</details></figure>"
    )


def section(title: str, *parts: str | Markup, anchor: str) -> Markup:
    """A section; plain text becomes a paragraph."""
    body = "\n".join(part if isinstance(part, Markup) else _paragraph(part) for part in parts if part)
    return Markup(
        f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{cell(title)}</h2>\n{body}\n</section>'
    )


def _paragraph(text: str) -> str:
    body = re.sub("`([^`]+)`", r"<code>\1</code>", cell(text))
    return f"<p>{body}</p>"


def badge(text: str, kind: str) -> Markup:
    """A word that stands out: `good`, `bad` or `calm`."""
    return Markup(f'<span class="badge {kind}">{cell(text)}</span>')
