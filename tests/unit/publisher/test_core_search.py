"""The publisher's core in a simulated world: schedules keep the promises; each safeguard taken away breaks one.

A violation is printed with what repeats it: `python -m tests.support.core_search --seed S --first N --schedules 1`.
"""

from __future__ import annotations

import pytest

from outbox_relay.publisher import core
from outbox_relay.publisher.core import Core
from tests.support.core_search import variants
from tests.support.core_search.directed import SCRIPTS
from tests.support.core_search.exhaustive import Reached, Small, explore
from tests.support.core_search.schedules import EXACTLY_ONCE, repeat, run
from tests.support.core_search.variants import FILES, VARIANTS, Variant
from tests.support.searching import Edit, sources

SEED = "check"
SCHEDULES = 70
"""Of each of the parts, so that the whole takes seconds."""
MORE = 1500
"""Schedules in which a variant is searched again, if a change has moved the one that caught it."""


@pytest.mark.parametrize("part", range(5))
def test_random_schedules_keep_every_promise(part: int) -> None:
    for number in range(part * SCHEDULES + 1, (part + 1) * SCHEDULES + 1):
        faults = run(SEED, number).faults
        assert not faults, f"{sorted(faults)}: {repeat(SEED, number)}"


@pytest.mark.parametrize("theme", EXACTLY_ONCE)
def test_random_schedules_of_transactions_keep_every_promise(theme: str) -> None:
    for number in range(1, SCHEDULES + 1):
        faults = run(SEED, number, theme=theme).faults
        assert not faults, f"{sorted(faults)}: {repeat(SEED, number, theme)}"


def test_trouble_of_some_topics_delays_no_others() -> None:
    for number in range(1, SCHEDULES + 1):
        faults = run(SEED, number, theme="bystanders").faults
        assert not faults, f"{sorted(faults)}: {repeat(SEED, number, 'bystanders')}"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_the_search_catches_the_core_without_a_safeguard(variant: Variant) -> None:
    if not variants.faults_of(variant, variant.schedule):
        found = variants.catching(variant, MORE)
        assert found is not None, f"no schedule of {MORE} shows what {variant.name!r} breaks"


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_core_is_sound_in_each_script(name: str) -> None:
    assert SCRIPTS[name](Core, frozenset())


def test_a_core_that_merely_crashes_is_not_caught() -> None:
    broken = Edit("core", "        self.is_stopping = True\n", "        raise KeyError(self)\n")
    variant = Variant("", "R1", "hand-overs", edits=(broken,))
    assert not variants.catching(variant, 5)


def test_each_edit_of_a_variant_changes_one_place() -> None:
    texts = sources(core, FILES)
    stale = [
        f"{variant.name}: {edit.file}.py has its text {texts[edit.file].count(edit.old)} times, not once"
        for variant in VARIANTS
        for edit in variant.edits
        if texts[edit.file].count(edit.old) != 1
    ]
    assert not stale, "\n".join(stale)


def test_each_variant_has_a_name_of_its_own() -> None:
    assert len({variant.name for variant in VARIANTS}) == len(VARIANTS) >= 50


def sound(small: Small) -> Reached:
    found = explore(small)
    assert not found.faults
    assert found.is_complete
    return found


def test_every_schedule_of_two_messages_is_sound() -> None:
    assert sound(Small(rows=2, takes=0, faults=0)).states > 30


@pytest.mark.deep
@pytest.mark.parametrize(
    "small",
    [
        Small(rows=2, faults=1, takes=0),
        Small(rows=2, faults=1, takes=0, bad=1),
        Small(rows=2, faults=1, takes=0, bad=2),
        Small(rows=2, faults=0, takes=0, bad=1, kind="fault"),
        Small(rows=1, faults=0, takes=1),
    ],
    ids=str,
)
def test_every_schedule_of_a_small_world_is_sound(small: Small) -> None:
    sound(small)
