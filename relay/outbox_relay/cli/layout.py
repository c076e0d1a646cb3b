"""Lays out tables for a width: fewer columns where they do not fit; no id, number or head is ever broken."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.cells import cell_len

GAP = 2
NARROWEST_TEXT = 24
"""Columns that a cell of prose may be folded to."""


def fitting(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    keep: Collection[str],
    text: Collection[str],
) -> list[int] | None:
    """Return the numbers of the columns that fit, without the last ones that need not be kept.

    Args:
        columns: the heads.
        rows: the cells.
        width: of the terminal.
        keep: columns that are not dropped.
        text: columns of prose, which may be folded.

    Returns:
        None if those that are kept do not fit.
    """
    least = _least(columns, rows, text)
    shown = list(range(len(columns)))
    while sum(least[number] for number in shown) + GAP * (len(shown) - 1) > width:
        dropped = next((number for number in reversed(shown) if columns[number] not in keep), None)
        if dropped is None:
            return None
        shown.remove(dropped)
    return shown


def lines_of(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Collection[str],
    text: Collection[str] = (),
    width: int | None = None,
) -> list[list[str]]:
    """Return the lines of a table as padded cells; the first is the head, in capitals.

    Args:
        columns: the heads.
        rows: the cells.
        right: columns of numbers.
        text: columns of prose, which are folded at spaces to fit.
        width: of the terminal; None: as wide as it is.
    """
    widths = _widths(columns, rows)
    if width is not None:
        least = _least(columns, rows, text)
        for number in reversed(range(len(columns))):
            excess = max(0, sum(widths) + GAP * (len(widths) - 1) - width)
            widths[number] = max(least[number], widths[number] - excess)
    lines = []
    for row in [[column.upper() for column in columns], *rows]:
        folded = [
            [cell] if cell_len(cell) <= size else _folded(cell, size)
            for cell, size in zip(row, widths, strict=True)
        ]
        for line in range(max(map(len, folded))):
            cells = [each[line] if line < len(each) else "" for each in folded]
            lines.append(
                [
                    _pad(cell, size, is_right=column in right)
                    for column, cell, size in zip(columns, cells, widths, strict=True)
                ]
            )
    return lines


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(cell_len, texts)) for texts in zip(map(str.upper, columns), *rows, strict=True)]


def _least(columns: Sequence[str], rows: Sequence[Sequence[str]], text: Collection[str]) -> list[int]:
    """Return how narrow each column may be: one of prose as its longest word."""
    widths = _widths(columns, rows)
    for number, name in enumerate(columns):
        if name in text:
            words = [word for row in rows for word in row[number].split()]
            longest = max(map(cell_len, (name, *words)))
            widths[number] = min(widths[number], max(NARROWEST_TEXT, longest))
    return widths


def _folded(cell: str, width: int) -> list[str]:
    """Fold prose at its spaces."""
    lines = [""]
    for word in cell.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _pad(cell: str, width: int, *, is_right: bool) -> str:
    spaces = " " * (width - cell_len(cell))
    return spaces + cell if is_right else cell + spaces
