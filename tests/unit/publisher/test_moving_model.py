"""The model of a topic that moves: every interleaving keeps the order, and each rule taken away breaks it."""

from __future__ import annotations

import pytest

from tests.support.models.moving_model import BACK, ORDER, Variant, missing, start, steps
from tests.support.models.search import Found, explore

SOUND: dict[str, Variant] = {
    "hand-over": Variant(),
    "a death": Variant(hand_overs=1, deaths=1),
    "a pause past the lease": Variant(hand_overs=1, pauses=1, messages=2),
    "a producer that is replaced": Variant(hand_overs=1, restarts=1, messages=2),
}

BROKEN: dict[str, tuple[Variant, str]] = {
    "a change used with messages on the wire": (Variant(hand_overs=0, waits=False), ORDER),
    "lanes published by what was known before they were taken": (Variant(reads_anew=False), BACK),
    "an older look-up brought after a newer one": (Variant(discards_older=False), BACK),
}


def search(v: Variant, until: str = "") -> Found:
    return explore(start(v), lambda state: steps(v, state), lambda state: missing(v, state), until=until)


@pytest.mark.deep
@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_of_a_move_breaks_the_order_of_a_key(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.states > 1_000
    assert found.ends


@pytest.mark.parametrize("name", BROKEN)
def test_a_rule_of_moving_taken_away_breaks_the_order(name: str) -> None:
    variant, wrong = BROKEN[name]
    assert wrong in search(variant, wrong).wrong
