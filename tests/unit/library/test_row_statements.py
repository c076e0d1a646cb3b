"""The statements that write rows: filled in from the one list of columns."""

from __future__ import annotations

import re

import pytest

from outbox import Message, wire
from outbox.operations.rows import COLUMNS, columns_of, load_rows, row_of
from outbox.statements import ByteaArray

STATEMENTS = {
    f"{file}: {name}": text
    for file in ("send.sql", "prepare.sql")
    for name, text in load_rows(file).items()
    if "INTO outbox.message" in text
}


@pytest.mark.parametrize("text", STATEMENTS.values(), ids=STATEMENTS)
def test_a_statement_lists_the_columns_of_a_row_and_numbers_them_in_that_order(text: str) -> None:
    (listed,) = re.findall(r"INTO outbox\.message \(([^)]*)\)", text)
    assert [column.strip() for column in listed.split(",")][: len(COLUMNS)] == list(COLUMNS)
    numbers = {int(number) for number in re.findall(r"\$(\d+)", text)}
    assert numbers == set(range(1, max(numbers) + 1)), "every parameter is used"
    assert max(numbers) > len(COLUMNS)
    assert not re.search(r"\{[a-z]|\$[+a-z]", text), "nothing is left to be filled in"


def test_a_row_has_a_value_for_each_column() -> None:
    message = Message("t", "k", b"b", transaction_id="x", checker="c", biz_type="order", biz_id="7")
    row = dict(zip(COLUMNS, row_of(message, None, None, "g"), strict=True))
    assert (row["topic"], row["producer_group"], row["transaction_id"]) == ("t", "g", "x")
    assert (row["checker"], row["biz_type"], row["biz_id"]) == ("c", "order", "7")


def test_arrays_of_bytes_are_those_of_columns_of_bytes() -> None:
    arrays = columns_of([row_of(Message("t", "k", b"b"), None, None, None)])
    of_bytes = {
        column for column, array in zip(COLUMNS, arrays, strict=True) if isinstance(array, ByteaArray)
    }
    assert of_bytes == {"key", "body", "order_key"}


@pytest.mark.parametrize("column", [column for column, _ in wire.TEXT_HEADERS])
def test_a_column_that_travels_as_a_header_is_a_field_of_the_message(column: str) -> None:
    assert COLUMNS[column] == "text"
    assert column in Message.__dataclass_fields__
