"""What asyncpg is sent: each parameter of a statement as text, bytea or an array of these, cast to its type."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from types import SimpleNamespace

import pytest

from outbox.drivers.asyncpg_async import cast_parameters
from outbox.operations.rows import load_rows
from outbox.statements import load

FILES = ("send.sql", "prepare.sql", "decide.sql", "cancel.sql", "groups.sql", "topics.sql")


def type_of(name: str, schema: str = "pg_catalog") -> SimpleNamespace:
    return SimpleNamespace(name=name, schema=schema)


@pytest.mark.parametrize(
    ("name", "is_array", "expected"),
    [
        ("timestamptz", False, '($1::text)::"pg_catalog"."timestamptz"'),
        ("char", False, '($1::text)::"pg_catalog"."char"'),
        ("text[]", False, '($1::text)::"pg_catalog"."text"[]'),
        ("text[]", True, "$1::text[]"),
        ("bytea", False, "$1::bytea"),
        ("bytea[]", False, "$1::bytea[]"),
    ],
)
def test_a_parameter_is_cast_from_what_is_bound(name: str, is_array: bool, expected: str) -> None:
    assert cast_parameters("f($1)", [type_of(name)], [is_array]) == f"f({expected})"


def test_numbers_of_two_digits_and_repeats_are_told_apart() -> None:
    types = [type_of(f"t{number}") for number in range(1, 12)]
    found = cast_parameters("$1 $11 $1", types, [False] * 11)
    assert re.findall(r'\$(\d+)::text\)::"pg_catalog"\."t(\d+)"', found) == [
        ("1", "1"),
        ("11", "11"),
        ("1", "1"),
    ]


def statements() -> Iterator[tuple[str, str]]:
    assert resources.files("outbox").joinpath("sql").is_dir()
    for file in FILES:
        for name, text in (load_rows if file in FILES[:2] else load)(file).items():
            yield f"{file} {name}", text


def test_no_literal_of_a_statement_looks_like_a_parameter() -> None:
    found = dict(statements())
    assert len(found) > 20
    literals = {name: re.findall("'(?:[^']|'')*'", text) for name, text in found.items()}
    assert sum(map(len, literals.values())) > 20
    assert [name for name, texts in literals.items() if any(re.search(r"\$\d", each) for each in texts)] == []
