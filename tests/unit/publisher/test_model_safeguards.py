"""Each broken variant of the publisher's models names tests of the real code, and there are such tests."""

from __future__ import annotations

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.support.models import safeguards
from tests.support.models.safeguards import Tests
from tests.support.sources import parse
from tests.unit.publisher import test_lanes_model

ROOT = Path(__file__).parents[2]
MODELS: dict[str, tuple[Tests, Collection[str]]] = {
    "lanes": (safeguards.LANES, test_lanes_model.BROKEN),
}


def names_in(path: Path) -> set[str]:
    return (
        {node.name for node in parse(path).body if isinstance(node, ast.FunctionDef)}
        if path.is_file()
        else set()
    )


@pytest.mark.parametrize("model", MODELS)
def test_each_broken_variant_names_a_test_of_the_real_code(model: str) -> None:
    table, broken = MODELS[model]
    assert sorted(table) == sorted(broken), "tests/support/models/safeguards.py names the same variants"
    assert [variant for variant, tests in table.items() if not tests] == []


@pytest.mark.parametrize("model", MODELS)
def test_the_tests_of_safeguards_exist(model: str) -> None:
    table, _ = MODELS[model]
    named = {test for tests in table.values() for test in tests}
    missing = [
        test for test in named if test.partition("::")[2] not in names_in(ROOT / test.partition("::")[0])
    ]
    assert missing == []
