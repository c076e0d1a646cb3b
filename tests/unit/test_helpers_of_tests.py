"""Helpers of tests are in tests/support, under names of what they give; other folders hold tests and fixtures."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
HERE = ("test_", "conftest.py", "__init__.py")


def test_a_folder_of_tests_holds_tests_and_fixtures_only() -> None:
    support = TESTS / "support"
    others = [path for path in TESTS.rglob("*.py") if support not in path.parents]
    assert len(others) > 200, "the folder of the tests was not found"
    helpers = [str(path.relative_to(TESTS)) for path in others if not path.name.startswith(HERE)]
    assert not helpers, f"move these to tests/support, named by what they give: {helpers}"
