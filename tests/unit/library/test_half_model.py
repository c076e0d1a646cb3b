"""The model of half messages: every interleaving keeps the promises, and each safeguard taken away breaks one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.support.models.half_model import JOINED, ROLLED_BACK, Variant, start
from tests.support.models.half_search import schedules, search, table
from tests.support.models.half_steps import steps
from tests.support.models.half_variants import BROKEN, SOUND


@pytest.mark.feature("S-07", "S-42")
@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_breaks_a_promise(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.states > 2_000
    assert found.ends, "the search ended nowhere"


@pytest.mark.parametrize("name", BROKEN)
def test_a_safeguard_taken_away_is_missed(name: str) -> None:
    variant, wrong = BROKEN[name]
    assert set(search(variant).wrong) == wrong


def test_a_schedule_ends_where_nobody_can_take_a_step() -> None:
    variant = Variant(JOINED, rounds=1, deaths=False, losses=False)
    found = [*schedules(variant)]
    assert len(set(found)) == len(found) > 10
    assert all(not [*steps(variant, schedule[-1][1])] for schedule in found)
    assert all(schedule[0] in [*steps(variant, start(variant))] for schedule in found)


def test_an_urgent_waiter_goes_on_before_anybody_else() -> None:
    variant = Variant(JOINED, nothing_found="rollback", rounds=1, policy=ROLLED_BACK, urgent=True)
    names = [[str(step) for step, _ in schedule] for schedule in schedules(variant)]
    woken = [pair for taken in names for pair in pairwise(taken)]
    ends = {before for before, after in woken if after.endswith("after waiting")}
    assert ends == {"a commit", "a dies", "e commit"}


def test_the_table_names_every_variant() -> None:
    variants = {name: variant for name, (variant, _) in BROKEN.items()}
    lines = "\n".join(table(variants, trace=True))
    assert all(f"{name}: {', '.join(sorted(wrong))}" in lines for name, (_, wrong) in BROKEN.items())
    assert "states in all" in lines
