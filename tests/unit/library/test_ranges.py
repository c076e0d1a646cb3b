"""The range of ids that a statement about one message names: it holds the message, and a million share a text."""

from __future__ import annotations

import re

import pytest

from outbox.operations.ranges import IDS, within_range
from outbox.statements import load

RANGED = [(name, text) for name, text in load("decide.sql").items() if "{range}" in text]


@pytest.mark.parametrize("row_id", [1, 2, IDS - 1, IDS, IDS + 1, 5 * IDS, 5 * IDS + 1, 2**48 - 1, 0, -7])
def test_the_range_holds_the_message(row_id: int) -> None:
    found = re.fullmatch(r"id >= (-?\d+) AND id < (-?\d+)", within_range("{range}", str(row_id)))
    assert found is not None
    first, beyond = int(found[1]), int(found[2])
    assert first <= row_id < beyond
    assert beyond - first == IDS


def test_the_first_partition_has_five_ranges_with_a_statement_each() -> None:
    texts = {within_range("{range}", str(row_id)) for row_id in range(1, 5_000_001, 1000)}
    assert len(texts) == 5
    assert within_range("{range}", "5000001") not in texts


@pytest.mark.parametrize(("name", "text"), RANGED, ids=[name for name, _ in RANGED])
def test_what_a_decision_runs_names_a_range(name: str, text: str) -> None:
    assert "{" not in within_range(text, "1")


def test_the_statements_of_a_decision_are_the_ones_with_a_range() -> None:
    assert {name for name, _ in RANGED} == {"decide", "join", "lock_order_key_of"}
