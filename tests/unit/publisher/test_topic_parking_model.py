"""The model of a parked topic: every interleaving keeps the promises, and each safeguard taken away breaks one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.models.search import Found, explore
from tests.support.models.topic_parking_model import (
    LOSS,
    OPERATOR,
    ORDER,
    STUCK,
    Variant,
    missing,
    start,
    steps,
)

ALONE = Variant(sessions=1, deaths=0)
SOUND: dict[str, Variant] = {
    "paused and resumed": replace(ALONE, messages=5),
    "paused twice": replace(ALONE, flips=4),
    "missing at first": replace(ALONE, flips=1),
    "paused, with a message that fails": replace(ALONE, poison=0, messages=5),
    "missing at first, with a message that fails": replace(ALONE, flips=1, poison=0, messages=5),
    "a take-over": Variant(deaths=0),
    "a death": Variant(),
    "a death, and a message that fails": Variant(poison=0),
    "a leader is lost twice": replace(ALONE, flips=0, leaders_lost=2, messages=5),
    "a leader is lost, and a message fails": replace(ALONE, flips=0, leaders_lost=1, poison=0, messages=5),
    "a leader is lost while a message fails in the drain of its topic": replace(
        ALONE, leaders_lost=1, poison=2, messages=5
    ),
    "a leader is lost in front of a message that fails": replace(
        ALONE, flips=0, leaders_lost=1, poison=2, messages=5
    ),
    "a leader is lost twice in front of a message that fails": replace(
        ALONE, flips=0, leaders_lost=2, poison=4, messages=5
    ),
    "a leader is lost, and a death": Variant(flips=0, leaders_lost=1, messages=3),
}
DEEP: dict[str, Variant] = {
    "a take-over while it is paused twice": Variant(deaths=0, flips=4),
    "a leader is lost, and a death, with four messages": Variant(flips=0, leaders_lost=1),
    "a leader is lost twice, with a take-over": Variant(deaths=0, flips=0, leaders_lost=2, messages=3),
    "a leader is lost, a message fails, and a death": Variant(flips=0, leaders_lost=1, poison=0, messages=3),
    "a leader is lost in front of a message that fails, and a death": Variant(
        flips=0, leaders_lost=1, poison=2, messages=3
    ),
    "a death with five messages, one of which fails": Variant(poison=0, messages=5, flips=1),
    "a leader is lost while a message fails in a drain, and a take-over": Variant(
        deaths=0, leaders_lost=1, poison=2, messages=3
    ),
}
BROKEN: dict[str, tuple[Variant, str]] = {
    "claims before what is in front of them has arrived": (Variant(claims_with_record=False), ORDER),
    "topics in memory only": (Variant(loads_topics=False), ORDER),
    "a drain with claims on the wire": (replace(ALONE, settles_first=False), STUCK),
    "a lane read behind the last page of a drain": (replace(ALONE, ends_before_reading=False), STUCK),
    "a topic that flows as soon as it is open": (replace(ALONE, drains_before_reading=False), ORDER),
    "a drain that publishes messages of a parked key": (
        replace(ALONE, poison=0, asks_keys_in_drains=False),
        ORDER,
    ),
    "a drain that leaves out what fails": (
        replace(ALONE, flips=1, poison=0, fails_in_drains=False),
        ORDER,
    ),
    "a drain of a key that forgets its request where the topic is closed": (
        replace(ALONE, flips=4, poison=0, keeps_request=False),
        STUCK,
    ),
    "what is given up counts as published": (
        replace(ALONE, flips=0, leaders_lost=1, claims_given_up=False),
        LOSS,
    ),
    "a drain that is given up with the key that it parked": (
        replace(ALONE, leaders_lost=1, poison=2, messages=5, claims_given_up_drains=False),
        STUCK,
    ),
    "a drain that moves what is in front of its parked key": (
        replace(ALONE, flips=0, leaders_lost=1, poison=2, messages=5, publishes_in_front=False),
        OPERATOR,
    ),
    "newer messages flow before what was given up": (
        replace(ALONE, flips=0, leaders_lost=1, parks_given_up=False),
        ORDER,
    ),
    "a record under another epoch": (Variant(deaths=0, checks_owner=False), ORDER),
}


def search(v: Variant) -> Found:
    return explore(start(v), lambda state: steps(v, state), lambda state: missing(v, state))


@pytest.mark.parametrize("name", SOUND)
def test_no_interleaving_of_a_parked_topic_breaks_a_promise(name: str) -> None:
    found = search(SOUND[name])
    assert found.wrong == {}
    assert found.ends, "the search ended nowhere"


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP)
def test_no_longer_interleaving_breaks_a_promise(name: str) -> None:
    found = search(DEEP[name])
    assert found.wrong == {}
    assert found.ends, "the search ended nowhere"


@pytest.mark.parametrize("name", BROKEN)
def test_a_safeguard_of_parked_topics_taken_away_is_missed(name: str) -> None:
    variant, what = BROKEN[name]
    assert what in search(variant).wrong
