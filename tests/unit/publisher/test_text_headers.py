"""Columns that travel as headers: the finder reads them, and the loop over rows makes a header of each."""

from __future__ import annotations

import ast
import inspect
import textwrap

import pytest

from outbox import wire
from outbox_relay.publisher.finder import COLUMNS, FIELDS, STATEMENTS
from outbox_relay.publisher.hands.rows import Rows, record_headers

HEADERS = [column for column, _ in wire.TEXT_HEADERS]


def loop() -> ast.For:
    """The loop over the rows of a page."""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(Rows.of_page))).body
    return next(node for node in ast.walk(function) if isinstance(node, ast.For))


def test_the_loop_over_rows_unpacks_the_fields_of_the_finder() -> None:
    unpacked = loop().body[0]
    assert isinstance(unpacked, ast.Assign)
    (names,) = unpacked.targets
    assert isinstance(names, ast.Tuple)
    found = [name.id for name in names.elts if isinstance(name, ast.Name)]
    assert len(found) == len(FIELDS)
    first = FIELDS.index(HEADERS[0])
    assert found[first : first + len(HEADERS)] == HEADERS


@pytest.mark.parametrize("column", HEADERS)
def test_a_column_that_travels_as_a_header_is_added_and_measured(column: str) -> None:
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(record_headers))).body
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    added = [ast.unparse(call) for call in calls if ast.unparse(call.func) == "record.append"]
    assert [text for text in added if text.endswith(f", {column}))")]
    assert f"{column} and len({column}) > LONG" in ast.unparse(loop())


def test_the_finder_reads_and_weighs_the_columns_that_travel_as_headers() -> None:
    columns = COLUMNS.as_string(None)
    assert all(f'CASE WHEN withheld IS NULL THEN "{column}" END' in columns for column in HEADERS)
    for statement, parts in {
        "weight": "{text_bytes}",
        "withheld": "{text_bytes}",
        "poll": "{no_text_headers}",
    }.items():
        assert parts in STATEMENTS[statement]
        assert not [column for column in HEADERS if column in STATEMENTS[statement]]
