"""Print what commands report: tables for people at a terminal, plain aligned text in a pipe, JSON for machines."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outbox_relay.text.formatting import NOTHING, bytes_for_json, cell, rfc3339

WIDE = 120
"""Columns of a terminal from which a list shows all that it has."""


def is_wide() -> bool:
    """Whether a list shows all its columns: in a wide terminal, and in a pipe."""
    return not sys.stdout.isatty() or shutil.get_terminal_size().columns >= WIDE


def emit_json(value: Any) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_plain))


def emit_json_line(value: Any) -> None:
    """Print one JSON document on one line, for commands that print many."""
    click.echo(json.dumps(value, ensure_ascii=False, default=_plain))


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, (bytes, memoryview)):
        return bytes_for_json(bytes(value))
    return str(value)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Collection[str] = (), title: str = ""
) -> None:
    """Print a table; `right` names the columns of numbers."""
    cells = [[cell(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        click.echo(plain_table(columns, cells, right=right, title=title))
        return
    shown = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        title=title or None,
        title_justify="left",
        title_style="bold",
    )
    for column in columns:
        # In capitals, as in a pipe: what a page of the documentation shows is what a terminal shows.
        shown.add_column(column.upper(), justify="right" if column in right else "left", overflow="fold")
    for row in cells:
        shown.add_row(*(Text(value, style=STYLES.get(value, "")) for value in row))
    Console(highlight=False).print(shown)


STYLES = {
    "ok": "green",
    "warning": "yellow",
    "FAILED": "bold red",
    "PUBLISHED": "green",
    "UNKNOWN": "yellow",
    "EXHAUSTED": "bold red",
    "DEAD": "bold red",
    "stopped": "bold red",
    "running": "green",
    "no owner": "yellow",
    NOTHING: "dim",
}


def plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[str] = (), title: str = ""
) -> str:
    """Align a table with spaces; the header is in capitals, no line has trailing space."""
    heads = [column.upper() for column in columns]
    widths = [max(map(len, texts)) for texts in zip(heads, *rows, strict=True)]
    lines = [
        "  ".join(
            text.rjust(width) if column in right else text.ljust(width)
            for column, text, width in zip(columns, row, widths, strict=True)
        ).rstrip()
        for row in [heads, *rows]
    ]
    return "\n".join([title, *lines] if title else lines)


def pairs(rows: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair to a line, leaving out what is None."""
    shown = [(name, cell(value)) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        click.echo(f"{name.ljust(width)}  {value}")
