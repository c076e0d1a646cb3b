"""The reference of the warehouse names every column of every table, as the tables say it themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.tables import CORE, Table

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "warehouse.md"
ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", re.MULTILINE)


@pytest.mark.parametrize("table", [*CORE, *MARTS, DAYS], ids=lambda table: table.name)
def test_the_reference_has_every_column_with_its_meaning(table: Table) -> None:
    sections = REFERENCE.read_text(encoding="utf-8").split("\n### ")
    own = next(text for text in sections if text.startswith(f"{table.name}\n"))
    assert ROW.findall(own) == [(column.name, column.type, column.comment) for column in table.columns]
