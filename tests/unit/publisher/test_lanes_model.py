"""The model of a hand-over: every interleaving keeps the promises, and each safeguard taken away breaks one."""

from __future__ import annotations

import pytest

from tests.support.models.lanes_model import LOSS, ORDER, OWNERS, STUCK, TWICE, Variant
from tests.support.models.lanes_search import search

ONE_EACH = (1, 1)

SOUND: dict[str, Variant] = {
    "hand-over": Variant(sessions=3),
    "a drain": Variant(drains=1),
    "a drain among three": Variant(sessions=3, drains=1, messages=ONE_EACH),
    "a death": Variant(deaths=1),
    "two deaths among three": Variant(sessions=3, deaths=2, messages=ONE_EACH),
    "a lease that runs out": Variant(pauses=1, messages=ONE_EACH),
    "a death and a lease that runs out": Variant(deaths=1, pauses=1, messages=ONE_EACH),
    "a row that is held": Variant(holds=2, drains=1, messages=ONE_EACH),
    "a row that is held while three join": Variant(sessions=3, holds=1, messages=ONE_EACH),
    "a row that is held when a leader ends": Variant(holds=1, deaths=1, messages=ONE_EACH),
    "an upgrade": Variant(sessions=3, older=frozenset({0}), deaths=1, messages=ONE_EACH),
    "an upgrade, and back": Variant(sessions=3, older=frozenset({0, 2}), deaths=2, messages=ONE_EACH),
}

BROKEN: dict[str, tuple[Variant, str]] = {
    "gives back before the record": (Variant(give_back="acknowledged", drains=1), TWICE),
    "takes from the living": (Variant(takes_from_living=True), TWICE),
    "a barrier that checks no epoch": (Variant(barrier_checks=False, pauses=1, messages=ONE_EACH), OWNERS),
    "a record that does not name its lanes": (
        Variant(record_checks=False, pauses=1, messages=ONE_EACH),
        OWNERS,
    ),
    "reads progress before it locks": (Variant(progress_before_lock=True, drains=1), TWICE),
    "reads a lane on after it is given back": (Variant(reads_on=True, drains=1), TWICE),
    "publishes a lane on after it is given back": (Variant(reads_on=True, drains=1), OWNERS),
    "records what is not acknowledged": (
        Variant(records_unacknowledged=True, deaths=1, messages=ONE_EACH),
        LOSS,
    ),
    "starts behind what is in doubt": (Variant(starts_behind_doubts=True, deaths=1), ORDER),
    "does not notice lost lanes without traffic": (
        Variant(notices_loss=False, pauses=1, deaths=1, holds=1, messages=ONE_EACH),
        STUCK,
    ),
    "keeps its lanes beside an older one": (
        Variant(holds=1, yields=False, messages=ONE_EACH),
        STUCK,
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_of_relays_breaks_a_promise(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.states > 1_000
    assert found.ends, "the search ended nowhere"


@pytest.mark.parametrize("name", BROKEN)
def test_a_safeguard_of_a_hand_over_taken_away_is_missed(name: str) -> None:
    variant, wrong = BROKEN[name]
    assert wrong in search(variant, wrong).wrong
