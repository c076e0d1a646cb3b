"""The model of messages that are taken with the commit of the one before: sound, and each safeguard is needed."""

from __future__ import annotations

import pytest

from tests.support.models.inbox_ahead_model import LOST, TWICE, Ahead, search

SOUND: dict[str, Ahead] = {
    "each fault once": Ahead(),
    "two deaths beside a refused commit": Ahead(deaths=2, losses=0),
    "two connections that are lost": Ahead(losses=2, deaths=0),
    "two partitions that are given away": Ahead(moves=2, refusals=2, deaths=0),
}
BROKEN: dict[str, tuple[Ahead, str]] = {
    "a message that counts as done when its commit is sent": (Ahead(notes_when="sent"), LOST),
    "a row behind a commit that was refused": (Ahead(stops_at_error=False), LOST),
    "a next message that is not given back": (Ahead(gives_back=False), LOST),
    "a next message that counts as taken on another connection": (Ahead(keeps_taken=True), TWICE),
    "a next message whose transaction is committed though it is not run": (Ahead(closes=False), LOST),
}


@pytest.mark.feature("S-90", "S-92")
@pytest.mark.parametrize("variant", SOUND.values(), ids=SOUND.keys())
def test_every_schedule_applies_each_effect_once(variant: Ahead) -> None:
    found = search(variant)
    assert found.wrong == {}
    assert found.ends > 0
    assert found.states > 500


@pytest.mark.parametrize(("variant", "broken"), BROKEN.values(), ids=BROKEN.keys())
def test_each_safeguard_is_needed(variant: Ahead, broken: str) -> None:
    found = search(variant, broken)
    assert broken in found.wrong, found.states
