"""Tables at any width: what is shown fits and is whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from outbox_relay.cli import layout, output

WORDS = st.text(st.sampled_from("abcdefghij0123456789-,_订"), min_size=1, max_size=24)
PROSE = st.lists(WORDS, min_size=1, max_size=9).map(" ".join)
COLUMNS = ["id", "name", "key", "number", "why"]


@given(
    st.lists(st.tuples(WORDS, WORDS, WORDS, WORDS, PROSE), min_size=1, max_size=4),
    st.integers(20, 160),
    st.sets(st.sampled_from(COLUMNS)),
)
def test_each_line_fits_and_no_cell_is_broken(
    rows: list[tuple[str, ...]], width: int, keep: set[str]
) -> None:
    keep |= {"id"}
    shown = layout.fitting(COLUMNS, rows, width, keep, ("why",))
    if shown is None:
        return
    assert keep <= {COLUMNS[number] for number in shown}
    columns = [COLUMNS[number] for number in shown]
    chosen = [[row[number] for number in shown] for row in rows]
    lines = ["  ".join(line) for line in layout.lines_of(columns, chosen, ("number",), ("why",), width)]
    assert all(cell_len(line) <= width for line in lines)
    assert lines[0].split() == [column.upper() for column in columns]
    for row in chosen:
        for column, cell in zip(columns, row, strict=True):
            whole = cell.split() if column == "why" else [cell]
            assert all(any(part in line for line in lines) for part in whole)


def test_the_last_columns_that_need_not_be_kept_are_dropped_first() -> None:
    row = [("1", "n" * 10, "k" * 10, "7", "w" * 10)]
    assert layout.fitting(COLUMNS, row, 200, ("id", "why"), ()) == [0, 1, 2, 3, 4]
    assert layout.fitting(COLUMNS, row, 40, ("id", "why"), ()) == [0, 1, 2, 4]
    assert layout.fitting(COLUMNS, row, 30, ("id", "why"), ()) == [0, 1, 4]
    assert layout.fitting(COLUMNS, row, 14, ("id", "why"), ()) == [0, 4]
    assert layout.fitting(COLUMNS, row, 13, ("id", "why"), ()) is None


def test_a_terminal_too_narrow_for_what_is_kept_gets_pairs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")
    output.table(["relay", "lanes"], [("host-1:4711:0123456789ab", [1, 2]), ("host-2:1:f", [3])])
    assert capsys.readouterr().out.splitlines() == [
        "relay  host-1:4711:0123456789ab",
        "lanes  1, 2",
        "",
        "relay  host-2:1:f",
        "lanes  3",
    ]
