"""Half messages on real PostgreSQL, schedule by schedule: what the model says is what happens.

The small configurations are driven completely, every interleaving of theirs; larger ones by schedules that together
take every step of every state that the model can reach.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.half_message_schedules import HalfStage
from tests.support.models.half_model import (
    APART,
    APART_LOCAL_FIRST,
    JOINED,
    JOINED_FAILS,
    JOINED_RAISES,
    KEPT,
    ROLLED_BACK,
    Variant,
)
from tests.support.models.half_search import covering, schedules
from tests.support.servers import MakeDatabase

ROLLBACK = "rollback"
ALL = {
    "joined": Variant(JOINED, nothing_found=ROLLBACK, rounds=1, urgent=True),
    "joined, fails": Variant(JOINED_FAILS, nothing_found=ROLLBACK, rounds=1, urgent=True),
    "joined, raises": Variant(JOINED_RAISES, nothing_found=ROLLBACK, rounds=1, urgent=True),
}
COVERED = {
    "kept": Variant(KEPT, other_database=True, rounds=1, urgent=True),
    "apart": Variant(APART, other_database=True, rounds=1, urgent=True),
    "apart, in one database": Variant(APART, other_database=True, rounds=1, urgent=True),
    "apart, local first": Variant(APART_LOCAL_FIRST, other_database=True, rounds=1, urgent=True),
    "policy": Variant(JOINED, nothing_found=ROLLBACK, rounds=1, policy=ROLLED_BACK, urgent=True),
    "operator": Variant(JOINED, nothing_found=ROLLBACK, rounds=1, operator=True, urgent=True),
    "two checkers": Variant(
        JOINED, nothing_found=ROLLBACK, rounds=1, checkers=2, deaths=False, losses=False, urgent=True
    ),
}


@pytest.fixture
def half_stage(request: pytest.FixtureRequest, make_database: MakeDatabase) -> Iterator[HalfStage]:
    """Where the variant's business rows belong: in the outbox's database, or in one of their own."""
    name = request.getfixturevalue("name")
    one = name.endswith("one database") or not (ALL | COVERED)[name].other_database
    half_stage = HalfStage(make_database(), None if one else make_database(migrated=False))
    yield half_stage
    half_stage.close()


@pytest.mark.feature("S-13", "S-14", "S-42")
@pytest.mark.parametrize("name", ALL)
def test_every_interleaving_ends_as_the_model_says(half_stage: HalfStage, name: str) -> None:
    driven = 0
    for schedule in schedules(ALL[name]):
        half_stage.run(ALL[name], schedule)
        driven += 1
    assert driven > 100


@pytest.mark.feature("S-42")
@pytest.mark.parametrize("name", COVERED)
def test_every_step_of_every_state_is_as_the_model_says(half_stage: HalfStage, name: str) -> None:
    for schedule in covering(COVERED[name]):
        half_stage.run(COVERED[name], schedule)
