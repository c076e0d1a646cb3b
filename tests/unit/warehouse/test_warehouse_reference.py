"""The site's reference of the warehouse has every table, with its columns."""

from __future__ import annotations

import re

import pytest

from outbox_etl.warehouse.mart_tables import DAYS, MARTS
from outbox_etl.warehouse.tables import CORE, Table
from tests.support import site

ROW = re.compile(r"^\| `(\w+)` \| (\S+) \| (.*) \|$", re.MULTILINE)


@pytest.mark.parametrize("table", [*CORE, *MARTS, DAYS], ids=lambda table: table.name)
def test_the_reference_has_every_column_with_its_meaning(table: Table) -> None:
    sections = site.page("reference/warehouse.md").split("\n### ")
    own = next(text for text in sections if text.startswith(f"{table.name}\n"))
    assert ROW.findall(own) == [(column.name, column.type, column.comment) for column in table.columns]
