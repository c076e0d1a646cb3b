"""The model of crashes: what a poll answers about itself is as good as a barrier, and each condition is needed."""

from __future__ import annotations

import pytest

from tests.support.models.durability_model import GHOST, LOSS, Variant, search

SOUND: dict[str, Variant] = {
    "a barrier for each batch": Variant(secures="barrier"),
    "the answer of the poll itself": Variant(),
    "a barrier, and a fail-over": Variant(secures="barrier", disaster="fail over", has_standby=True),
    "no answer where there are standbys": Variant(disaster="fail over", has_standby=True),
    "the answer, and progress outside": Variant(ledger=True),
}
BROKEN: dict[str, tuple[Variant, set[str]]] = {
    "nothing, with progress in the database": (Variant(secures="nothing"), {GHOST}),
    "nothing, with progress outside": (Variant(secures="nothing", ledger=True), {GHOST, LOSS}),
    "a position that was read before the poll": (Variant(secures="before"), {GHOST}),
    "an answer that another server may give": (Variant(secures="later"), {GHOST, LOSS}),
    "an answer where a standby takes over": (
        Variant(disaster="fail over", has_standby=True, asks_for_standbys=False),
        {GHOST},
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_no_crash_takes_back_what_was_published(name: str) -> None:
    states, wrong = search(SOUND[name])
    assert wrong == set()
    assert states > 1_000


@pytest.mark.parametrize("name", BROKEN)
def test_a_condition_of_the_answer_taken_away_is_missed(name: str) -> None:
    variant, wrong = BROKEN[name]
    assert search(variant)[1] == wrong
