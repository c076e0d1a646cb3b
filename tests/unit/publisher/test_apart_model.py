"""The model of a topic read apart: every interleaving keeps the promises; each safeguard taken away breaks one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.models.apart_model import missing, start, steps
from tests.support.models.apart_state import LOSS, ORDER, TWICE, Variant
from tests.support.models.search import Found, explore

HANDED_OVER = Variant(takes_from_living=False)
AGAIN = replace(HANDED_OVER, topics="AAAAB", transactions=(3, 1, 1))
"""The topic of the flood sends again."""
PARKED = replace(HANDED_OVER, bad=frozenset({1}))
WIDE = replace(PARKED, topics="AAAAB", transactions=(4, 1), of_list=2)
"""A page of the list holds a message that is published, and one that fails."""
PARKED_FIRST = replace(HANDED_OVER, bad=frozenset({0}), sessions=3)
"""The first session parks a key, the next one drains it next to a list that it has not read, the third one goes on."""
WHOLE = replace(WIDE, whole_topic=True, of_drain=1)
REFUSED = Variant("AAABA", (3, 2), sessions=1, failures=2)
"""Kafka refuses messages of the topic of the flood."""

SOUND: dict[str, Variant] = {
    "a pause past the lease": Variant(),
    "a death": replace(HANDED_OVER, deaths=1, backs=1),
    "more of the topic": AGAIN,
    "more of both, and a lane that goes back": Variant("AAAABA", (3, 1, 1, 1), sessions=1, backs=1),
    "a parked key": replace(PARKED, deaths=1, backs=1),
    "a parked key, and more of both": Variant(
        "AAAABA", (3, 1, 1, 1), bad=frozenset({1}), sessions=1, backs=1
    ),
    "a parked key, and a death": replace(WIDE, deaths=1, backs=1),
    "two refusals": REFUSED,
    "a refusal, and a parked key": replace(PARKED, sessions=1, failures=1),
    "a parked key, and two hand-overs": PARKED_FIRST,
    "a parked topic, and a lane that goes back": replace(WHOLE, deaths=1, backs=1),
    "a parked topic, and two hand-overs": replace(PARKED_FIRST, whole_topic=True, of_drain=1),
    "a parked key that is drained in pages": replace(WIDE, of_drain=1, backs=1),
    "a parked key of the only topic, and two hand-overs": replace(
        PARKED_FIRST, topics="AAA", transactions=(3,)
    ),
}

BROKEN: dict[str, tuple[Variant, str]] = {
    "the progress of one part is recorded": (replace(HANDED_OVER, least_floor=False), LOSS),
    "an open list counts as published": (replace(HANDED_OVER, open_list_is_behind=False), LOSS),
    "new messages do not wait behind the list": (replace(AGAIN, waits_behind=False), ORDER),
    "a topic joins without a common snapshot": (replace(AGAIN, joins_in_one_snapshot=False), LOSS),
    "one part is recorded, and a producer lost": (replace(REFUSED, least_floor=False), LOSS),
    "what has committed since a refused message was read is taken for listed": (
        replace(REFUSED, care_ends_at_seen=False),
        LOSS,
    ),
    "the others read a refused topic, too": (replace(REFUSED, waits_behind=False), ORDER),
    "a floor is taken for all that is published": (replace(HANDED_OVER, compares=False), TWICE),
    "a batch with claims is not partial": (replace(WIDE, claims_are_partial=False), TWICE),
    "a drain next to a list records what was recorded before": (
        replace(PARKED_FIRST, drains_record_reading=False),
        TWICE,
    ),
    "the same with one topic": (
        replace(PARKED_FIRST, topics="AAA", transactions=(3,), drains_record_reading=False),
        TWICE,
    ),
    "a topic is drained while its list is open": (
        replace(WHOLE, waits_for_lists=False, waits_above_floors=False),
        TWICE,
    ),
    "a topic is drained at a floor": (replace(WHOLE, backs=1, waits_above_floors=False), TWICE),
    "what was drained is published by its list": (replace(PARKED, passes_over_drained=False), TWICE),
}


def search(v: Variant, until: str = "") -> Found:
    return explore(start(v), lambda state: steps(v, state), lambda state: missing(v, state), until=until)


@pytest.mark.deep
@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_of_a_topic_read_apart_breaks_a_promise(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.ends, "the search ended nowhere"


@pytest.mark.parametrize("name", BROKEN)
def test_a_safeguard_of_topics_read_apart_taken_away_is_missed(name: str) -> None:
    variant, wrong = BROKEN[name]
    assert wrong in search(variant, wrong).wrong
