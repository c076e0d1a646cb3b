"""A long search of the publisher's core: random schedules of a new seed, and every variant again.

OUTBOX_SCHEDULES=… runs so many schedules, OUTBOX_SCHEDULES_SEED=… those of a seed.
"""

from __future__ import annotations

import os
import secrets

import pytest

from tests.support.core_search import variants
from tests.support.core_search.schedules import repeat, run
from tests.support.core_search.variants import VARIANTS, Variant
from tests.support.terminal_lines import Tell

USUAL = 100_000
PARTS = 10
MOST = 20_000
"""Schedules within which a variant is caught."""


def new_seed() -> str:
    """Return the seed that was asked for, or one that no run had before."""
    return os.environ.get("OUTBOX_SCHEDULES_SEED") or secrets.token_hex(4)


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS))
def test_no_random_schedule_breaks_a_promise(part: int, tell: Tell) -> None:
    seed, count = new_seed(), int(os.environ.get("OUTBOX_SCHEDULES") or USUAL) // PARTS
    tell(f"OUTBOX_SCHEDULES_SEED={seed}: schedules {part * count + 1} to {(part + 1) * count}")
    for number in range(part * count + 1, (part + 1) * count + 1):
        faults = run(seed, number).faults
        assert not faults, f"{sorted(faults)}: {repeat(seed, number)}"


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_new_seed_catches_each_variant_of_the_core(variant: Variant, tell: Tell) -> None:
    seed = new_seed()
    tell(f"OUTBOX_SCHEDULES_SEED={seed}: {variant.name}")
    assert variants.catching(variant, MOST, seed=seed) is not None, (
        f"seed {seed}: {variant.name} was not caught"
    )
