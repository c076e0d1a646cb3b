"""What runs on a caller's connection names the schema of each function, so that no `search_path` decides who is called.

Operators are tried on a server, where a database has a double of each: tests/integration/sessions/test_search_path.py.
"""

from __future__ import annotations

import re
from importlib import resources

import pytest

CALLED = re.compile(r"(?<![\w.\"])(?P<name>[a-z_]\w*) ?\(", re.IGNORECASE)
GRAMMAR = """
    all and any array as bit by case cast coalesce conflict else exists extract filter from greatest in interval lateral
    least limit materialized not nullif on or over row select set then using values when where with
"""
"""Words of the language, and expressions that look like functions. `extract` is always PostgreSQL's own."""
SEVERAL = re.compile(r"\bunnest ?\((?:[^(),]|\[[^]]*\])*,")
"""`unnest` of several arrays: PostgreSQL takes its own, and knows it only without a schema."""
ALIASES = {"given", "unsettled", "pending"}
"""Names of tables with a list of their columns; or a single letter."""
FILES = sorted(
    each.name for each in resources.files("outbox").joinpath("sql").iterdir() if each.name.endswith(".sql")
)


def _bare(text: str) -> str:
    """Take comments and texts away."""
    return re.sub(r"'(?:[^']|'')*'", "''", re.sub(r"--[^\n]*", "", text))


def unqualified(text: str) -> list[str]:
    """The functions that a text calls without their schema."""
    names = [found["name"].lower() for found in CALLED.finditer(SEVERAL.sub("", _bare(text)))]
    return [name for name in names if name not in {*GRAMMAR.split(), *ALIASES} and len(name) > 1]


@pytest.mark.parametrize("file", FILES)
def test_each_function_is_named_with_its_schema(file: str) -> None:
    text = resources.files("outbox").joinpath("sql", file).read_text(encoding="utf-8")
    assert not unqualified(text), "write pg_catalog. in front"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("SELECT concat_ws(', ', a)", ["concat_ws"]),
        ("SELECT pg_catalog.concat_ws(', ', a), coalesce(a, 'f(x)')  -- count(*)", []),
        ("SELECT now() WHERE a IN (SELECT max(b) FROM unnest(c) u (b))", ["now", "max", "unnest"]),
        ("SELECT FROM unnest($1::text[], $2::bytea[]) AS given (a, b)", []),
    ],
)
def test_unqualified_functions_are_found(text: str, found: list[str]) -> None:
    assert unqualified(text) == found
