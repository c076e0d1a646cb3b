"""More schedules of half messages on real PostgreSQL: deaths and losses in every place, up to two checkers at once."""

from __future__ import annotations

import pytest

from tests.support.half_message_schedules import HalfStage
from tests.support.models.half_model import (
    APART,
    APART_LOCAL_FIRST,
    EXHAUSTED,
    JOINED,
    KEPT,
    KEPT_FAILS,
    ROLLED_BACK,
    Variant,
)
from tests.support.models.half_search import covering, schedules
from tests.support.servers import MakeDatabase

pytestmark = pytest.mark.long

ALL = {
    "kept": Variant(KEPT, other_database=True, rounds=1, urgent=True),
    "kept, fails": Variant(KEPT_FAILS, other_database=True, rounds=1, urgent=True),
    "apart": Variant(APART, other_database=True, rounds=1, urgent=True),
    "apart, local first": Variant(APART_LOCAL_FIRST, other_database=True, rounds=1, urgent=True),
    "joined, policy": Variant(JOINED, nothing_found="rollback", rounds=1, policy=ROLLED_BACK, urgent=True),
}
COVERED = {
    "two checkers": Variant(JOINED, nothing_found="rollback", rounds=1, checkers=2, urgent=True),
    "exhausted": Variant(
        JOINED, nothing_found="rollback", rounds=1, policy=EXHAUSTED, operator=True, urgent=True
    ),
    "kept, fails, exhausted": Variant(
        KEPT_FAILS, other_database=True, rounds=1, policy=EXHAUSTED, operator=True, urgent=True
    ),
}


@pytest.mark.parametrize("name", ALL)
def test_every_interleaving_ends_as_the_model_says(name: str, make_database: MakeDatabase) -> None:
    stage = HalfStage(make_database(), make_database(migrated=False) if ALL[name].other_database else None)
    for schedule in schedules(ALL[name]):
        stage.run(ALL[name], schedule)
    stage.close()


@pytest.mark.parametrize("name", COVERED)
def test_every_step_of_every_state_is_as_the_model_says(name: str, make_database: MakeDatabase) -> None:
    stage = HalfStage(
        make_database(), make_database(migrated=False) if COVERED[name].other_database else None
    )
    for schedule in covering(COVERED[name]):
        stage.run(COVERED[name], schedule)
    stage.close()
