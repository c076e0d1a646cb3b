"""Print what commands report: tables for people at a terminal, plain aligned text in a pipe, JSON for machines."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from outbox_relay.cli import layout, streams
from outbox_relay.text.formatting import NOTHING, bytes_for_json, cell, rfc3339

WIDE = 120
"""Columns of a terminal from which a list shows all that it has."""


def is_wide() -> bool:
    """Whether a list shows all its columns: in a wide terminal, and in a pipe."""
    return not is_terminal() or shutil.get_terminal_size().columns >= WIDE


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, ensure_ascii=not streams.takes_any_text(), indent=2, default=_plain))


def emit_json_line(value: Any) -> None:
    """Print one JSON document on one line, for commands that print many."""
    click.echo(json.dumps(value, ensure_ascii=not streams.takes_any_text(), default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, (bytes, memoryview)):
        return bytes_for_json(bytes(value))
    return str(value)


def is_terminal() -> bool:
    """Whether a person reads standard output."""
    return sys.stdout.isatty()


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Collection[str] = (),
    keep: Collection[str] | None = None,
    text: Collection[str] = (),
) -> None:
    """Print a table; a terminal that is too narrow for it gets fewer columns, or a pair of name and value on each line.

    Args:
        columns: the heads.
        rows: a value for each column.
        right: columns of numbers.
        keep: columns that the list needs; of the others, the last are dropped first. None: all.
        text: columns of prose, which may be folded; ids and numbers never are.
    """
    cells = [[cell(value) for value in row] for row in rows]
    if not is_terminal():
        click.echo(plain_table(columns, cells, right=right))
        return
    width = shutil.get_terminal_size().columns
    shown = layout.fitting(columns, cells, width, columns if keep is None else keep, text)
    if shown is None:
        for number, row in enumerate(cells):
            if number:
                click.echo()
            pairs(zip(columns, row, strict=True))
        return
    console = Console(highlight=False)
    chosen = [[row[number] for number in shown] for row in cells]
    lines = layout.lines_of([columns[number] for number in shown], chosen, right, text, width)
    for number, line in enumerate(lines):
        parts = [(each, "bold" if number == 0 else STYLES.get(each.strip(), "")) for each in line]
        written = Text()
        for place, part in enumerate(parts):
            written.append(" " * layout.GAP if place else "")
            written.append(*part)
        written.rstrip()
        console.print(written, soft_wrap=True)


STYLES = {
    "ok": "green",
    "warning": "yellow",
    "FAILED": "bold red",
    "PUBLISHED": "green",
    "UNKNOWN": "yellow",
    "EXHAUSTED": "bold red",
    "DEAD": "bold red",
    "held": "bold red",
    "running": "green",
    "no owner": "yellow",
    NOTHING: "dim",
}


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = ()) -> str:
    """Align a table with spaces; the header is in capitals, no line has trailing space."""
    gap = " " * layout.GAP
    return "\n".join(gap.join(line).rstrip() for line in layout.lines_of(columns, rows, right))


def pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair to a line, leaving out what is None."""
    shown = [(name, cell(value)) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {value}")
