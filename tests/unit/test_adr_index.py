"""docs/adr/README.md lists every decision with its title, status and date."""

from __future__ import annotations

from tests.support.adr_index import INDEX, index


def test_the_index_lists_every_decision() -> None:
    found = INDEX.read_text(encoding="utf-8")
    assert found == index(), "run .venv/bin/python -m tests.support.adr_index --write"
