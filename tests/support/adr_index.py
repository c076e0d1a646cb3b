"""The index of the decisions, docs/adr/README.md, made from the head of each page.

    python -m tests.support.adr_index --write   # bring it up to date

A page begins with its number and title, and its third line is `Status: … . Date: … .`
"""

from __future__ import annotations

import re
import sys

from tests.support.rooms import ROOT

FOLDER = ROOT / "docs" / "adr"
INDEX = FOLDER / "README.md"
HEAD = re.compile(
    r"# (?P<number>\d+)\. (?P<title>.+)\n\nStatus: (?P<status>[^.]+)\. Date: (?P<date>[\d-]+)\."
)
TOP = """# Decisions

A page records one decision: the context, what was decided, which alternatives were rejected and why. When a decision
changes, a new page supersedes the old one. `python -m tests.support.adr_index --write` writes this index.

| | Decision | Status | Date |
|---|---|---|---|
"""


def index() -> str:
    """The text of the index.

    Raises:
        ValueError: a page does not begin as all pages do.
    """
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        found = HEAD.match(path.read_text(encoding="utf-8"))
        if found is None or int(found["number"]) != int(path.name[:4]):
            raise ValueError(
                f"docs/adr/{path.name}: begin with '# NUMBER. TITLE', "
                "an empty line, and 'Status: accepted. Date: 2026-01-31.'"
            )
        rows.append(
            f"| {found['number']} | [{found['title']}]({path.name}) | {found['status']} | {found['date']} |\n"
        )
    return TOP + "".join(rows)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        INDEX.write_text(index(), encoding="utf-8")
    else:
        sys.stdout.write(index())
