"""docs/adr/README.md lists every decision with its title, status and date, and what names a decision names a page."""

from __future__ import annotations

import re

import pytest

from tests.support.adr_index import INDEX, decisions, index
from tests.support.rooms import ROOT

REFERENCE = re.compile(r"docs/adr/(\d{4})|\bADR (\d+)\b")
FOLDERS = ["outbox", "relay", "local", "migrations", "spark_etl", "bench", "docs", "deploy"]


def test_the_index_lists_every_decision() -> None:
    found = INDEX.read_text(encoding="utf-8")
    assert found == index(), "run .venv/bin/python -m tests.support.adr_index --write"


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_names_a_decision_names_a_page(folder: str) -> None:
    pages = {each.number for each in decisions()}
    faults = [
        f"{path.relative_to(ROOT)}: {found[0]}: no page of docs/adr has this number"
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".sql", ".md", ".yaml", ".yml")
        for found in REFERENCE.finditer(path.read_text(encoding="utf-8"))
        if int(found[1] or found[2]) not in pages
    ]
    assert not faults, "\n" + "\n".join(faults)
