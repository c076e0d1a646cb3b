"""Each kind of sabotage touches one message, and the proof names its flight."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox_local.demo.sabotage import NothingToSabotageError, Sabotage, sabotage
from tests.support.demo_world import world

CLAIM = {Sabotage.DROP: "arrived", Sabotage.DOUBLE: "once", Sabotage.SWAP: "order"}


@pytest.mark.parametrize("kind", Sabotage)
@settings(deadline=None, max_examples=40)
@given(chance=st.integers(0, 2**32), seed=st.integers(0, 1000))
def test_the_proof_fails_and_names_the_flight(kind: Sabotage, chance: int, seed: int) -> None:
    made = world(300, chance=chance)
    before = [record.value for record in made.records]
    made.records = sabotage(made.records, kind, seed)
    after = [record.value for record in made.records]
    proof = made.prove()
    assert not proof.holds
    place = next(place for place, now in enumerate([*after, None]) if [*before, None][place] != now)
    touched = after[place] if kind is Sabotage.DOUBLE else before[place]
    row = json.loads(touched or "")["row"]
    assert any(f"(row {row})" in offender for offender in proof.claims[CLAIM[kind]].offenders)


@pytest.mark.parametrize(("kind", "more"), [(Sabotage.DROP, -1), (Sabotage.DOUBLE, 1), (Sabotage.SWAP, 0)])
def test_offsets_betray_nothing(kind: Sabotage, more: int) -> None:
    made = world()
    wrecked = sabotage(made.records, kind, 1)
    assert len(wrecked) == len(made.records) + more
    for partition in {record.partition for record in wrecked}:
        offsets = [record.offset for record in wrecked if record.partition == partition]
        assert offsets == list(range(len(offsets)))


def test_nothing_to_sabotage_is_said() -> None:
    with pytest.raises(NothingToSabotageError, match="nothing to swap among 1 records"):
        sabotage(world().records[:1], Sabotage.SWAP, 1)
