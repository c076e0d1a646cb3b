"""The model of a parked key: every interleaving keeps the promises, and each safeguard taken away breaks one."""

from __future__ import annotations

import pytest

from tests.support.models.parking_model import DEAD, LOSS, ORDER, STUCK, Variant, missing, start, steps
from tests.support.models.search import Found, explore

SOUND: dict[str, Variant] = {
    "a repaired cause": Variant(deaths=0, sessions=1),
    "a take-over": Variant(deaths=0),
    "a death": Variant(),
    "a late commit": Variant(late=True, deaths=0, sessions=1),
    "a late commit and a take-over": Variant(late=True, deaths=0),
    "a second failure": Variant(bad=frozenset({0, 2})),
    "a message given up": Variant(gives_up=1),
    "a late commit and a message given up": Variant(late=True, gives_up=1, deaths=0, sessions=1),
    "row locks": Variant(locks=2, deaths=0, sessions=1),
    "a row lock and a take-over": Variant(locks=1, deaths=0),
    "a row lock and a late commit": Variant(locks=1, late=True, deaths=0, sessions=1),
    "a row lock and a second failure": Variant(locks=1, bad=frozenset({0, 2}), deaths=0, sessions=1),
    "a row lock that times a record out": Variant(locks=1, times_out=True, deaths=0),
}

BROKEN: dict[str, tuple[Variant, str]] = {
    "deletes up to a place": (Variant(late=True, deaths=0, sessions=1, deletes_by_id=False), LOSS),
    "lists after it has announced": (Variant(lists_when_announcing=False, gives_up=1), DEAD),
    "claims in the next barrier": (Variant(claims_with_record=False), ORDER),
    "claims without a lock": (Variant(claims_lock=False), ORDER),
    "keys in memory only": (Variant(loads_keys=False), ORDER),
    "a drain with claims on the wire": (Variant(settles_first=False), LOSS),
    "a drain recorded under another epoch": (Variant(checks_drains=False), LOSS),
    "a lock between two pages holds the key again": (
        Variant(locks=1, deaths=0, sessions=1, frees_with_row=False, ends_before_reading=False),
        STUCK,
    ),
    "a lane read behind the last page of a drain": (
        Variant(deaths=0, sessions=1, ends_before_reading=False),
        STUCK,
    ),
    "a time-out that leaves nothing in doubt": (
        Variant(locks=1, times_out=True, deaths=0, doubts_drains=False, gives_up=1),
        DEAD,
    ),
    "a drain that leaves nothing in doubt": (Variant(doubts_drains=False, gives_up=1), DEAD),
}


def search(v: Variant, until: str = "") -> Found:
    return explore(start(v), lambda state: steps(v, state), lambda state: missing(v, state), until=until)


@pytest.mark.deep
@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_of_a_parked_key_breaks_a_promise(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.ends, "the search ended nowhere"


@pytest.mark.parametrize("name", BROKEN)
def test_a_safeguard_of_parked_keys_taken_away_is_missed(name: str) -> None:
    variant, wrong = BROKEN[name]
    assert wrong in search(variant, wrong).wrong
