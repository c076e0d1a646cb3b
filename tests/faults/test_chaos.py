"""Whatever dies, and however many relays run: nothing is lost, invented or overtaken."""

from __future__ import annotations

import pytest

from outbox_local.stack.api import Stack
from tests.support.chaos import Chaos, ManyRelays, Place, endure
from tests.support.terminal_lines import Tell


@pytest.fixture
def place(private_stack: Stack, private_database: str, private_topic: str) -> Place:
    return Place(private_stack, private_database, private_topic)


@pytest.mark.feature("S-02", "S-38", "S-102")
@pytest.mark.parametrize(
    "seconds", [pytest.param(45, id="short"), pytest.param(600, id="long", marks=pytest.mark.long)]
)
def test_whatever_dies_nothing_is_lost_invented_or_overtaken(place: Place, seconds: int, tell: Tell) -> None:
    """One relay at a time is wanted; another takes over when it dies or sleeps past its lease."""
    endure(lambda chance: Chaos(place.stack, place.dsn, chance), place, seconds, tell)


@pytest.mark.feature("S-38", "S-102")
@pytest.mark.parametrize(
    "seconds", [pytest.param(12, id="short"), pytest.param(300, id="long", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("relays", [2, 4])
def test_relays_that_share_lanes_lose_invent_and_overtake_nothing(
    place: Place, relays: int, seconds: int, tell: Tell
) -> None:
    """Meanwhile messages cannot be published, topics are missing or paused, and operators mend or give up.

    The topic that is well is published to its end while the others are sick.
    """
    endure(lambda chance: ManyRelays(place, chance, relays), place, seconds, tell)
