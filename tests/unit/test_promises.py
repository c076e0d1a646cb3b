"""The README claims no more than tests prove: each promise names tests, and those exist."""

from __future__ import annotations

import re

import pytest

from tests.support.features import ROOT

PLACE = re.compile(r"`(tests/[^`]+)`")
TARGET = re.compile(r"`make ([a-z]+)`")
AS_ABOVE = "the same"


def promises() -> dict[str, str]:
    """Return the README's table of promises: the promise's name, and what proves it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.partition("## What it promises")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| \*\*(.+?)\*\*.* \| (.+) \|$", table, re.MULTILINE))


@pytest.mark.feature("S-04")
def test_each_promise_of_the_readme_names_tests_that_exist() -> None:
    found = promises()
    assert len(found) >= 8, "the table was read"
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for name, proof in found.items():
        named = [*PLACE.findall(proof), *TARGET.findall(proof)]
        assert named or AS_ABOVE in proof, f"{name}: no test is named"
        assert set(TARGET.findall(proof)) <= targets, f"{name}: {proof}"
        for place in PLACE.findall(proof):
            files = [path for path in ROOT.glob(place) if path.is_file()] or list(
                ROOT.glob(f"{place}/**/test_*.py")
            )
            assert any("def test_" in path.read_text(encoding="utf-8") for path in files), f"{name}: {place}"
