"""The documentation stays short: words of a page, words in all, and no sentence twice."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.features import PAGE as FEATURES
from tests.support.features import ROOT

MOST_WORDS = 47_500
"""Of all pages together; lower it when you have cut some."""
MOST_WORDS_OF_A_PAGE = 2_500
LEAST_WORDS_OF_A_SENTENCE = 9
"""Shorter ones may stand in several places."""
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if "adr" not in path.parts and path != FEATURES),
]
MADE = re.compile(
    r"<!-- (drawn|measured|extrapolated): .*?<!-- (end|measured|extrapolated): .*?-->", re.DOTALL
)
"""What programs write into pages."""
CODE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
END = re.compile(r"(?<=[.:;])\s+|\n\n|\n- |\n\d+\. |\|")


def words(text: str) -> list[str]:
    """Return the words of a text, code included; strokes of tables and drawings are none."""
    return [each for each in MADE.sub("", text).split() if re.search(r"\w", each)]


def sentences(text: str) -> list[str]:
    """Return the sentences outside of code, in small letters and without marks."""
    plain = END.split(CODE.sub("", MADE.sub("", text)))
    return [" ".join(re.findall(r"\w+", each.lower())) for each in plain]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_is_short(path: Path) -> None:
    found = len(words(path.read_text(encoding="utf-8")))
    assert found <= MOST_WORDS_OF_A_PAGE, "split it where a reader would search for something else, or cut"


def test_the_pages_together_are_short() -> None:
    found = sum(len(words(path.read_text(encoding="utf-8"))) for path in PAGES)
    assert found <= MOST_WORDS, "cut what repeats another page, --help or a docstring"


def test_no_sentence_stands_twice() -> None:
    places = defaultdict(list)
    for path in PAGES:
        for sentence in sentences(path.read_text(encoding="utf-8")):
            if len(sentence.split()) >= LEAST_WORDS_OF_A_SENTENCE:
                places[sentence].append(path.relative_to(ROOT).as_posix())
    twice = [f"{', '.join(found)}: {sentence}" for sentence, found in places.items() if len(found) > 1]
    assert not twice, "link to one of them:\n" + "\n".join(twice)
