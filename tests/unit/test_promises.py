"""The README promises no more than tests prove: its page of promises names them, and those exist."""

from __future__ import annotations

import re

import pytest

from tests.support.features import ROOT

PLACE = re.compile(r"`(tests/[^`]+)`")
TARGET = re.compile(r"`make ([a-z]+)`")
AS_ABOVE = "the same"
README = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 1_200


def promises() -> dict[str, str]:
    """Return the table of promises: the promise's name, and what proves it."""
    text = (ROOT / "docs/concepts/promises.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| \*\*(.+?)\*\*.* \| (.+) \|$", text, re.MULTILINE))


@pytest.mark.feature("S-04")
def test_each_promise_names_tests_that_exist() -> None:
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


def test_the_readme_has_a_line_for_each_promise_of_the_page() -> None:
    section = README.partition("## What it promises")[2].partition("\n## ")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE) == list(promises())


def test_the_readme_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS, "details have pages of their own"
