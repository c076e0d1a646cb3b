"""The index of the decisions, docs/adr/README.md, made from the head of each page.

    python -m tests.support.adr_index --write   # bring it up to date

A page begins with its number and title, and its third line is `Status: … . Date: … .` The first pages merge earlier
ones and name them: `Merges: 2, 3.` The index lists where each of these is now, because history names it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.rooms import ROOT

FOLDER = ROOT / "docs" / "adr"
INDEX = FOLDER / "README.md"
HEAD = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+)\n\n"
    r"Status: (?P<status>[^.]+)\. Date: (?P<date>[\d-]+( to [\d-]+)?)\.( Merges: (?P<merged>[\d, ]+)\.)?"
)
TOP = """# Decisions

A page records the decisions of one subject that a newcomer could undo by mistake, and what was rejected. When a
decision changes, change its page, or write a new one that supersedes it. Measurements belong to `bench/`.
`python -m tests.support.adr_index --write` writes this index.

| | Decision | Status | Date |
|---|---|---|---|
"""
FORMER = """
## Former numbers

Commits of before November 30, 2026 name the pages that these merge: former number→page. What is not listed is in git
only.

"""


class Decision(NamedTuple):
    """The head of a page."""

    path: Path
    number: int
    title: str
    status: str
    date: str
    merged: list[int]


def decisions() -> Iterator[Decision]:
    """Each page, by number.

    Raises:
        ValueError: a page does not begin as all pages do.
    """
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        found = HEAD.match(path.read_text(encoding="utf-8"))
        if found is None or int(found["number"]) != int(path.name[:4]):
            raise ValueError(
                f"docs/adr/{path.name}: begin with '# NUMBER. TITLE', "
                "an empty line, and 'Status: accepted. Date: 2026-01-31.'"
            )
        merged = [int(number) for number in (found["merged"] or "").split(",") if number]
        yield Decision(path, int(found["number"]), found["title"], found["status"], found["date"], merged)


def index() -> str:
    """The text of the index.

    Raises:
        ValueError: a page does not begin as all pages do, or two pages merge the same one.
    """
    rows, former = "", dict[int, int]()
    for each in decisions():
        rows += f"| {each.number} | [{each.title}]({each.path.name}) | {each.status} | {each.date} |\n"
        if twice := former.keys() & each.merged:
            raise ValueError(f"docs/adr/{each.path.name} merges {sorted(twice)}, which another page merges")
        former |= dict.fromkeys(each.merged, each.number)
    tens = dict[int, list[str]]()
    for old in sorted(former):
        tens.setdefault(old // 10, []).append(f"{old}→{former[old]}")
    return TOP + rows + FORMER + "".join(f"- {', '.join(each)}\n" for each in tens.values())


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        INDEX.write_text(index(), encoding="utf-8")
    else:
        sys.stdout.write(index())
